// Stands between Gloo and the kernel in a rank under test (LD_PRELOAD) and does damage there, below everything that
// Isthmus knows about: ends the process or flips a bit at the n-th packet, write or close. Until it is armed it does
// nothing.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum event { EVENT_NONE, EVENT_PACKET, EVENT_BYTES, EVENT_CLOSE };

static const char kMagics[][4] = {{'I', 'S', 'H', 'M'}, {'I', 'S', 'H', 'W'}};  // of gradients, of weights' headers
enum { kMagicBytes = 4, kMostBuffers = 8 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static enum event armed = EVENT_NONE;
static long countdown = 0;     // packets or closes until the injection
static long bytes_left = 0;    // until the injection
static long flip_offset = -1;  // byte of the packet; -1: the injection is to end the process
static long flip_mask = 0;
static double* injected_at = NULL;           // where the time of the injection is written
static const char* target = NULL;       // the byte to flip on its way out; it stays as it is in memory
static const char* last_packet = NULL;  // and where it went
static int last_packet_fd = -1;

static void note_time(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  *injected_at = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void end_process(void) {
  note_time();
  kill(getpid(), SIGKILL);
}

static void arm(enum event event, long nth, long offset, long mask, double* when) {
  pthread_mutex_lock(&mutex);
  armed = event;
  countdown = bytes_left = nth;
  flip_offset = offset;
  flip_mask = mask;
  injected_at = when;
  target = last_packet = NULL;
  pthread_mutex_unlock(&mutex);
}

// The nth packet (from 1) that this process sends from now on leaves with the bits of `mask` flipped in its byte
// `offset`.
void interposer_flip(long nth, long offset, long mask, double* when) { arm(EVENT_PACKET, nth, offset, mask, when); }
// The process ends, as by kill -9, when the first byte of that packet would leave.
void interposer_kill_at_packet(long nth, double* when) { arm(EVENT_PACKET, nth, -1, 0, when); }
// It ends once it has sent so many bytes.
void interposer_kill_after_bytes(long bytes, double* when) { arm(EVENT_BYTES, bytes, -1, 0, when); }
// It ends when it would close its nth socket.
void interposer_kill_at_close(long nth, double* when) { arm(EVENT_CLOSE, nth, -1, 0, when); }

static int is_packet(const char* data) {
  return memcmp(data, kMagics[0], kMagicBytes) == 0 || memcmp(data, kMagics[1], kMagicBytes) == 0;
}

// A packet begins a buffer of its own. What the kernel did not take comes again: the same packet is counted once.
static void look_for_packet(int fd, const struct iovec* buffers, int num_buffers) {
  const char* known = fd == last_packet_fd ? last_packet : NULL;
  last_packet = fd == last_packet_fd ? NULL : last_packet;
  for (int i = 0; i < num_buffers; ++i) {
    const char* data = buffers[i].iov_base;
    if (buffers[i].iov_len < kMagicBytes || !is_packet(data)) {
      continue;
    }
    last_packet = data;
    last_packet_fd = fd;
    if (data != known && --countdown == 0) {
      if (flip_offset < 0) {
        end_process();
      }
      target = data + flip_offset;
    }
  }
}

static ssize_t real_writev(int fd, const struct iovec* buffers, int num_buffers) {
  static ssize_t (*next)(int, const struct iovec*, int) = NULL;
  if (next == NULL) {
    next = (ssize_t(*)(int, const struct iovec*, int))dlsym(RTLD_NEXT, "writev");
  }
  return next(fd, buffers, num_buffers);
}

// Writes up to the target, or the damaged target alone: the kernel may take less than it is given, and then the caller
// comes again with the rest.
static ssize_t write_around_target(int fd, const struct iovec* buffers, int num_buffers) {
  struct iovec head[kMostBuffers];
  for (int i = 0; i < num_buffers && i < kMostBuffers; ++i) {
    head[i] = buffers[i];
    const char* data = buffers[i].iov_base;
    if (target < data || target >= data + buffers[i].iov_len) {
      continue;
    }
    if (i == 0 && target == data) {
      const char damaged = (char)(*target ^ flip_mask);
      const struct iovec single = {(void*)&damaged, 1};
      const ssize_t written = real_writev(fd, &single, 1);
      if (written == 1) {
        note_time();
        armed = EVENT_NONE;
        target = NULL;
      }
      return written;
    }
    head[i].iov_len = (size_t)(target - data);
    return real_writev(fd, head, i + 1);
  }
  return real_writev(fd, buffers, num_buffers);
}

ssize_t writev(int fd, const struct iovec* buffers, int num_buffers) {
  pthread_mutex_lock(&mutex);
  if (armed == EVENT_PACKET && target == NULL) {
    look_for_packet(fd, buffers, num_buffers);
  }
  const ssize_t written =
      target != NULL ? write_around_target(fd, buffers, num_buffers) : real_writev(fd, buffers, num_buffers);
  if (armed == EVENT_BYTES && written > 0 && (bytes_left -= written) <= 0) {
    end_process();
  }
  pthread_mutex_unlock(&mutex);
  return written;
}

int close(int fd) {
  static int (*next)(int) = NULL;
  if (next == NULL) {
    next = (int (*)(int))dlsym(RTLD_NEXT, "close");
  }
  struct sockaddr_storage address;
  socklen_t length = sizeof(address);
  if (armed == EVENT_CLOSE && getpeername(fd, (struct sockaddr*)&address, &length) == 0 && --countdown == 0) {
    end_process();
  }
  return next(fd);
}
