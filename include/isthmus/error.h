// What Isthmus throws, and the one macro that throws it.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace isthmus {

// The caller, a peer or the machine is at fault. The text names what was wrong, the value and the range. Every
// exception that leaves the library is an Error or one of its subclasses.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An option or environment variable is out of range, or options differ between ranks.
class OptionError : public Error {
 public:
  using Error::Error;
};

// A packet is not what this rank expects: it is foreign or corrupt, or has another unit, step or version.
class PacketError : public Error {
 public:
  using Error::Error;
};

// A transport failed: a peer is silent or dead, a wait timed out, or the tier was aborted.
class TransportError : public Error {
 public:
  using Error::Error;
};

namespace detail {

template <typename... Parts>
std::string concatenate(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

}  // namespace detail
}  // namespace isthmus

// Throws `ErrorType` if `condition` does not hold. The message is all later arguments, streamed together:
//   ISTHMUS_CHECK(Error, shard.num_elements * size == gradient.num_elements, "shard of ", ..., " elements");
#define ISTHMUS_CHECK(ErrorType, condition, ...)                    \
  do {                                                              \
    if (!(condition)) [[unlikely]] {                                \
      throw ErrorType(::isthmus::detail::concatenate(__VA_ARGS__)); \
    }                                                               \
  } while (false)
