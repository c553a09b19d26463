// What a process enqueues: which work on which stream uses which memory, and what orders streams.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "tests/cpp/support/stream_order.h"

namespace isthmus::fake_gpu {

// Thread-safe. They write a line each while fake_gpu_trace() says so, and do nothing else.
void trace_work(const std::string& name, cudaStream_t stream, const std::vector<test::MemoryUse>& uses);
void trace_record(cudaEvent_t event, cudaStream_t stream);
void trace_wait(cudaStream_t stream, cudaEvent_t event);
// A thread looks whether an event has passed.
void trace_query(cudaEvent_t event);
// The host waits for all that a "stream", an "event" or the "device" has.
void trace_synchronize(const char* with, const void* handle);

}  // namespace isthmus::fake_gpu
