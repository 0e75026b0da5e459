#include "trireme/base/foreign_error.h"

#include <yaml-cpp/exceptions.h>

#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>
#include <system_error>

#include "trireme/base/units.h"

namespace trireme {

namespace {

Error failed(const std::string& message) { return {Error::Kind::failed, message}; }

// Without the library's "[json.exception.type_error.302] ".
std::string without_tag(const std::string& text) {
  const auto end = text.find("] ");
  return text.starts_with('[') && end != std::string::npos ? text.substr(end + 2) : text;
}

std::string paths_of(const std::filesystem::filesystem_error& error) {
  auto paths = error.path1().string();
  if (!error.path2().empty()) paths += " to " + error.path2().string();
  return paths.empty() ? error.what() : paths;
}

}  // namespace

Explained out_of_memory(std::optional<uint64_t> bytes, bool on_card) {
  const auto amount = bytes ? human_bytes(static_cast<double>(*bytes)) + " were asked for, more" : "more was asked for";
  return {failed(fmt::format("out of memory{}: {} than is free", on_card ? " on the card" : "", amount)), true};
}

Explained explain_standard(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& ours) {
    return {ours};
  } catch (const std::bad_alloc&) {
    return out_of_memory(std::nullopt);
  } catch (const std::filesystem::filesystem_error& error) {
    return {failed(fmt::format("{}: {}", paths_of(error), error.code().message()))};
  } catch (const std::system_error& error) {
    return {failed(fmt::format("the system refused what was asked of it: {}", error.what()))};
  } catch (const nlohmann::json::exception& error) {
    return {failed(fmt::format("a JSON file holds something else than expected: {}", without_tag(error.what())))};
  } catch (const YAML::Exception& error) {
    const auto where = error.mark.is_null() ? "" : fmt::format(" in line {}", error.mark.line + 1);
    return {failed(fmt::format("a YAML file holds something else than expected{}: {}", where, error.msg))};
  } catch (const std::exception& error) {
    return {failed(error.what())};
  } catch (...) {
    return {failed("something was thrown that is no exception")};
  }
}

}  // namespace trireme
