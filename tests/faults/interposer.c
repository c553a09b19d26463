// Stands between Gloo and the kernel in a rank under test (LD_PRELOAD), below everything that Isthmus knows about: it
// ends the process at the n-th packet, write or close. Until it is armed it does nothing.
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
enum { kMagicBytes = 4 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static enum event armed = EVENT_NONE;
static long countdown = 0;   // packets or closes until the injection
static long bytes_left = 0;  // until the injection
static double* injected_at = NULL;      // where the time of the injection is written
static const char* last_packet = NULL;  // that left, and where it went
static int last_packet_fd = -1;

static void end_process(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  *injected_at = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
  kill(getpid(), SIGKILL);
}

static void arm(enum event event, long nth, double* when) {
  pthread_mutex_lock(&mutex);
  armed = event;
  countdown = bytes_left = nth;
  injected_at = when;
  last_packet = NULL;
  pthread_mutex_unlock(&mutex);
}

// The process ends, as by kill -9, when the first byte of the nth packet (from 1) that it sends from now on would leave.
void interposer_kill_at_packet(long nth, double* when) { arm(EVENT_PACKET, nth, when); }
// It ends once it has sent so many bytes.
void interposer_kill_after_bytes(long bytes, double* when) { arm(EVENT_BYTES, bytes, when); }
// It ends when it would close its nth socket.
void interposer_kill_at_close(long nth, double* when) { arm(EVENT_CLOSE, nth, when); }

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
      end_process();
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

ssize_t writev(int fd, const struct iovec* buffers, int num_buffers) {
  pthread_mutex_lock(&mutex);
  if (armed == EVENT_PACKET) {
    look_for_packet(fd, buffers, num_buffers);
  }
  const ssize_t written = real_writev(fd, buffers, num_buffers);
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
