#include "trireme/spec/links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/data/temporary.h"
#include "trireme/base/error.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

TEST(Links, AFitFindsTheLinkThatTheTimesCameFrom) {
  std::vector<std::pair<int64_t, double>> times;
  for (int64_t bytes = 64; bytes <= 4 << 20; bytes *= 4)
    times.emplace_back(bytes, 17e-6 + static_cast<double>(bytes) * 3e-9);
  const auto link = fit_link(times);
  EXPECT_NEAR(link.alpha_s, 17e-6, 1e-12);
  EXPECT_NEAR(link.beta_s_per_byte, 3e-9, 1e-16);
  // Neither the short messages nor the long ones are left out of account when all are a tenth off.
  for (size_t i = 0; i < times.size(); ++i) times[i].second *= i % 2 == 0 ? 1.1 : 0.9;
  const auto rough = fit_link(times);
  EXPECT_NEAR(rough.alpha_s, 17e-6, 17e-7);
  EXPECT_NEAR(rough.beta_s_per_byte, 3e-9, 3e-10);
}

TEST(Links, OneLengthIsNotEnough) {
  EXPECT_THROW(fit_link({{1000, 1e-3}, {1000, 1.1e-3}}), Error);
  EXPECT_THROW(fit_link({}), Error);
}

class LinksFile : public testing::Test {
 protected:
  fs::path path_ = fs::path(process_folder()) / "links.yaml";
  void write(const std::string& text) { std::ofstream(path_) << text; }
  std::string refusal() {
    try {
      read_links(path_);
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing";
  }
};

TEST_F(LinksFile, IsReadAsItWasWritten) {
  const Links links{{1e-6, 1e-10, 2e-11}, {5.3e-5, 1.6e-8, 7e-11}};
  write_links(links, path_);
  const auto read = read_links(path_);
  EXPECT_NEAR(read.between.alpha_s, links.between.alpha_s, 1e-15);
  EXPECT_NEAR(read.between.beta_s_per_byte, links.between.beta_s_per_byte, 1e-18);
  EXPECT_NEAR(read.between.gamma_s_per_byte, links.between.gamma_s_per_byte, 1e-20);
  EXPECT_NEAR(read.inside.alpha_s, links.inside.alpha_s, 1e-15);
}

TEST_F(LinksFile, SaysWhatIsWrongInIt) {
  fs::remove(path_);
  EXPECT_THAT(refusal(), HasSubstr("there is no such file; trireme bench comm --tune"));
  write("between: {latency_us: 10, bandwidth_gb: 0}\n");
  EXPECT_THAT(refusal(), HasSubstr("between.bandwidth_gb = 0 must be above 0"));
  write("between: {latency_ms: 10}\n");
  EXPECT_THAT(refusal(), HasSubstr("between.latency_us"));
  write("between: {latency_us: 10");
  EXPECT_THAT(refusal(), HasSubstr("links.yaml"));
}

}  // namespace
}  // namespace trireme
