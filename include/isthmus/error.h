// What Isthmus throws, and the one macro that throws it.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace isthmus {

// A caller's, a peer's or the machine's fault. The text names what was wrong, the value and the range.
// Every exception that leaves the library is of this type or of one of its subclasses.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An option or an environment variable out of its range, or options that differ between ranks.
class OptionError : public Error {
 public:
  using Error::Error;
};

// A packet that is not what this rank expects: foreign, corrupt, of another unit, step or version.
class PacketError : public Error {
 public:
  using Error::Error;
};

// A transport that failed: a silent or dead peer, a timeout, an abort.
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

// Throws `ErrorType` with the streamed-together message if `condition` does not hold:
//   ISTHMUS_CHECK(Error, shard.num_elements * size == gradient.num_elements, "shard of ", ..., " elements");
#define ISTHMUS_CHECK(ErrorType, condition, ...)                    \
  do {                                                              \
    if (!(condition)) [[unlikely]] {                                \
      throw ErrorType(::isthmus::detail::concatenate(__VA_ARGS__)); \
    }                                                               \
  } while (false)
