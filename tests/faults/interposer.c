// Stands between Gloo and the kernel in a rank under test (LD_PRELOAD), below everything that Isthmus knows about: it
// ends the process at the n-th packet, write or close, or changes a bit of a packet. Until it is armed it does nothing.
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

enum event { EVENT_NONE, EVENT_PACKET, EVENT_DAMAGE, EVENT_BYTES, EVENT_CLOSE };

static const char kMagics[][4] = {{'I', 'S', 'H', 'M'}, {'I', 'S', 'H', 'W'}};  // of gradients, of weights' headers
enum { kMagicBytes = 4, kHeadBytes = 4096, kMostBuffers = 8 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static enum event armed = EVENT_NONE;
static long countdown = 0;   // packets or closes until the injection
static long bytes_left = 0;  // until the injection
static double* injected_at = NULL;      // where the time of the injection is written
static const char* last_packet = NULL;  // that left, and where it went
static int last_packet_fd = -1;
static long damaged_bit = 0;

static void note_time(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  *injected_at = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void end_process(void) {
  note_time();
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
// A bit of the nth packet is another one when it arrives: of its first 4096 bytes the given one, counted on from the
// first one again behind the last. The sender's memory stays as it is.
void interposer_damage_packet(long nth, long bit, double* when) {
  damaged_bit = bit;
  arm(EVENT_DAMAGE, nth, when);
}
// It ends once it has sent so many bytes.
void interposer_kill_after_bytes(long bytes, double* when) { arm(EVENT_BYTES, bytes, when); }
// It ends when it would close its nth socket.
void interposer_kill_at_close(long nth, double* when) { arm(EVENT_CLOSE, nth, when); }

static int is_packet(const char* data) {
  return memcmp(data, kMagics[0], kMagicBytes) == 0 || memcmp(data, kMagics[1], kMagicBytes) == 0;
}

// A packet begins a buffer of its own. What the kernel did not take comes again: the same packet is counted once.
// Returns which buffer begins the packet that was counted for, -1 if none does.
static int look_for_packet(int fd, const struct iovec* buffers, int num_buffers) {
  int found = -1;
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
      found = i;
    }
  }
  return found;
}

static ssize_t real_writev(int fd, const struct iovec* buffers, int num_buffers) {
  static ssize_t (*next)(int, const struct iovec*, int) = NULL;
  if (next == NULL) {
    next = (ssize_t(*)(int, const struct iovec*, int))dlsym(RTLD_NEXT, "writev");
  }
  return next(fd, buffers, num_buffers);
}

// Sends the packet's head and what stands before it. The caller sends the rest.
static ssize_t write_damaged(int fd, const struct iovec* buffers, int damaged) {
  struct iovec changed[kMostBuffers];
  char head[kHeadBytes];
  memcpy(changed, buffers, sizeof(struct iovec) * (size_t)(damaged + 1));
  struct iovec* last = &changed[damaged];
  last->iov_len = last->iov_len < kHeadBytes ? last->iov_len : kHeadBytes;
  memcpy(head, last->iov_base, last->iov_len);
  head[damaged_bit / 8 % (long)last->iov_len] ^= (char)(1 << damaged_bit % 8);
  last->iov_base = head;
  note_time();
  return real_writev(fd, changed, damaged + 1);
}

ssize_t writev(int fd, const struct iovec* buffers, int num_buffers) {
  pthread_mutex_lock(&mutex);
  const int found = armed == EVENT_PACKET || armed == EVENT_DAMAGE ? look_for_packet(fd, buffers, num_buffers) : -1;
  if (found >= 0 && armed == EVENT_PACKET) {
    end_process();
  }
  const int is_damaged = found >= 0 && found < kMostBuffers;
  const ssize_t written = is_damaged ? write_damaged(fd, buffers, found) : real_writev(fd, buffers, num_buffers);
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
