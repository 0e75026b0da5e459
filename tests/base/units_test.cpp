#include "trireme/base/units.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(UnitsTest, BytesInPowersOfAThousand) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1000), "1.00 kB");
  EXPECT_EQ(human_bytes(33628200), "33.6 MB");
  EXPECT_EQ(human_bytes(512e6), "512 MB");
  EXPECT_EQ(human_bytes(7e15), "7.00 PB");
  EXPECT_EQ(human_bytes(7e18), "7000 PB");  // the last suffix takes what is left
}

TEST(UnitsTest, RoundingMovesToTheNextSuffixRatherThanShowing1000) {
  EXPECT_EQ(human_bytes(999.4), "999 B");
  EXPECT_EQ(human_bytes(999499), "999 kB");
  EXPECT_EQ(human_bytes(999500), "1.00 MB");
  EXPECT_EQ(human_bytes(9994), "9.99 kB");
  EXPECT_EQ(human_bytes(9996), "10.0 kB");
  EXPECT_EQ(human_bytes(99940), "99.9 kB");
  EXPECT_EQ(human_bytes(99960), "100 kB");
}

TEST(UnitsTest, CountsHaveNoSuffixBelowAThousand) {
  EXPECT_EQ(human_count(0), "0");
  EXPECT_EQ(human_count(42), "42");
  EXPECT_EQ(human_count(8407050), "8.41 M");
  EXPECT_EQ(human_count(1.75e11), "175 G");
}

TEST(UnitsTest, NegativeAmountsKeepTheirSign) { EXPECT_EQ(human_bytes(-2500000), "-2.50 MB"); }

TEST(UnitsTest, SecondsFromMicrosecondsToDays) {
  EXPECT_EQ(human_seconds(0), "0 us");
  EXPECT_EQ(human_seconds(35e-6), "35 us");
  EXPECT_EQ(human_seconds(0.0042), "4.2 ms");
  EXPECT_EQ(human_seconds(1.25), "1.2 s");
  EXPECT_EQ(human_seconds(59.9), "59.9 s");
  EXPECT_EQ(human_seconds(60), "1 min 0 s");
  EXPECT_EQ(human_seconds(725), "12 min 5 s");
  EXPECT_EQ(human_seconds(3599.4), "59 min 59 s");
  EXPECT_EQ(human_seconds(3599.6), "1 h 0 min");
  EXPECT_EQ(human_seconds(86400), "1 d 0 h");
  EXPECT_EQ(human_seconds(200000), "2 d 7 h");
}

TEST(Units, BytesAreReadWithTheirUnit) {
  EXPECT_EQ(bytes_from("80GiB"), int64_t{80} << 30);
  EXPECT_EQ(bytes_from("80 GiB"), int64_t{80} << 30);
  EXPECT_EQ(bytes_from("1.5GB"), 1'500'000'000);
  EXPECT_EQ(bytes_from("512kB"), 512'000);
  EXPECT_EQ(bytes_from("512KiB"), 512 * 1024);
  EXPECT_EQ(bytes_from("2TB"), 2'000'000'000'000);
  EXPECT_EQ(bytes_from("7B"), 7);
  for (const auto* wrong : {"", "80", "-1", "-5GB", "0GB", "GB", "80G", "80GiBs", "plenty", "99999999999999999999GB",
                            "1e999GB", "nanGB", "80 GB "}) {
    EXPECT_EQ(bytes_from(wrong), std::nullopt) << wrong;
  }
}

}  // namespace
}  // namespace trireme
