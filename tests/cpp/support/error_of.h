// What a call complains of.
#pragma once

#include <string>

#include "isthmus/error.h"

namespace isthmus::test {

// The text of the error that call() throws; empty: none.
template <typename ErrorType = Error, typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const ErrorType& error) {
    return error.what();
  }
  return "";
}

}  // namespace isthmus::test
