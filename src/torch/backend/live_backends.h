// Tracks the backends of this process, for its exit and its forks.
#pragma once

namespace isthmus::torch_backend {

class BackendIsthmus;

// A backend is added at the end of its constructor and removed at the start of its destructor. A child that is forked
// in between never destroys it: the destructor would wait for threads that the child does not have, and close the
// parent's connections.
void add_live_backend(BackendIsthmus* backend);
void remove_live_backend(BackendIsthmus* backend);

// Registers a handler for forks. Called before the first backend is made; later calls have no effect.
void watch_forks();

// Shuts down every backend of this process that still runs. Called at the interpreter's exit.
void shutdown_all();

}  // namespace isthmus::torch_backend
