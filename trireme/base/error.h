// The one exception of this program. It says what was wrong and what to do; layers on the way up add where.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

class Error : public std::exception {
 public:
  // A failed error ends the program with exit status 1; a refused one (the user asked for something impossible) with 2.
  enum class Kind { failed, refused };

  Error(Kind kind, std::string message) : kind_(kind), message_(std::move(message)) {}

  Kind kind() const { return kind_; }
  int exit_status() const { return kind_ == Kind::refused ? 2 : 1; }
  const char* what() const noexcept override { return message_.c_str(); }

  // Says where: "rank 1, reduce bucket 3: <what was wrong>".
  Error& add_context(const std::string& where) {
    message_ = where + ": " + message_;
    return *this;
  }

 private:
  Kind kind_;
  std::string message_;
};

// Something went wrong that the user did not ask for.
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(Error::Kind::failed, fmt::format(format, std::forward<Args>(args)...));
}

// What the user asked for cannot be done: bad input, refused before anything is lost.
template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(Error::Kind::refused, fmt::format(format, std::forward<Args>(args)...));
}

// "name: No such file or directory" from the current errno.
[[noreturn]] void fail_errno(const std::string& what);

// The entry of `valid` nearest to `word` by edit distance, or "" when none is near.
std::string nearest(const std::string& word, const std::vector<std::string>& valid);

}  // namespace trireme
