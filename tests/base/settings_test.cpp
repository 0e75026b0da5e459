#include "trireme/base/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <sstream>

#include "tests/base/settings_example.h"
#include "trireme/base/random.h"

namespace trireme {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(SettingsTest, ReadsEveryTypeFromNestedMaps) {
  const auto example = read(
      "model: {layers: 12, dropout: 0.5, color: blue}\n"
      "optimizer:\n"
      "  lr: 3e-4\n"
      "  nesterov: true\n"
      "data: {path: \"some where/a: b.txt\"}\n"
      "run_dir: runs/mine\n");
  EXPECT_EQ(example, (Example{12, 0.5, 3e-4, true, Color::blue, "some where/a: b.txt", "runs/mine"}));
}

TEST(SettingsTest, AcceptsDottedKeys) {
  EXPECT_EQ(read("model.layers: 7\nmodel: {dropout: 0.25}\n"), (Example{.layers = 7, .dropout = 0.25}));
}

TEST(SettingsTest, AnEmptyTextOrSectionChangesNothing) {
  for (const char* yaml : {"", "\n\n", "# nothing\n", "---\n", "model:\n  # layers: 3\n"}) {
    EXPECT_EQ(read(yaml), Example{}) << yaml;
  }
}

TEST(SettingsTest, LaterFilesWinAndOverridesAreLast) {
  Example example;
  Settings settings = describe(example);
  settings.read_text("model: {layers: 5, dropout: 0.1}", "a.yaml");
  settings.read_text("model: {layers: 6}", "b.yaml");
  EXPECT_EQ(example.layers, 6);
  EXPECT_EQ(example.dropout, 0.1);
  settings.override_with("model.layers=7");
  settings.override_with("data.path=a=b c");
  settings.override_with("run_dir=");
  EXPECT_EQ(example.layers, 7);
  EXPECT_EQ(example.path, "a=b c");
  EXPECT_EQ(example.run_dir, "");
}

TEST(SettingsTest, OnlyTheLastValueHasToKeepItsBounds) {
  Example example;
  Settings settings = describe(example);
  settings.read_text("optimizer: {lr: -1}", "a.yaml");
  settings.override_with("optimizer.lr=2");
  EXPECT_NO_THROW(settings.check());
}

TEST(SettingsTest, KnowsWhatWasGiven) {
  Example example;
  Settings settings = describe(example);
  settings.read_text("model: {layers: 4}", "a.yaml");  // the default, but given
  settings.override_with("optimizer.lr=2");
  EXPECT_TRUE(settings.is_set("model.layers"));
  EXPECT_TRUE(settings.is_set("optimizer.lr"));
  EXPECT_FALSE(settings.is_set("model.dropout"));
  EXPECT_THROW(settings.is_set("model.nothing"), Error);
  EXPECT_EQ(settings.text("model.color"), "green");
  EXPECT_THAT(settings.keys(), ElementsAre("model.layers", "model.dropout", "model.color", "optimizer.lr",
                                           "optimizer.nesterov", "data.path", "run_dir"));
}

TEST(SettingsTest, IntegersMayBeWrittenWithAnExponent) {
  EXPECT_EQ(read("model: {layers: 1e6}").layers, 1000000);
  EXPECT_EQ(read("model: {layers: 1.5e3}").layers, 1500);
  EXPECT_EQ(read("model: {layers: 9223372036854775807}").layers, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(read("optimizer: {lr: 2}").lr, 2.0);
}

TEST(SettingsTest, ANumberThatWasASwitchReadsItsWords) {
  double ahead = 0;
  Settings settings;
  settings.add("ahead", ahead, "How far.").at_most(8).once_a_switch();
  for (const auto& [text, value] : {std::pair{"true", 1.0}, {"1.5", 1.5}, {"false", 0.0}}) {
    settings.override_with(std::string("ahead=") + text);
    EXPECT_EQ(ahead, value);
  }
  EXPECT_THROW(settings.override_with("ahead=yes"), Error);
}

TEST(SettingsTest, ASettingMayBeReadOnlyWhereOthersSaySo) {
  bool moves = false;
  double momentum = 0.9, rate = 0.1;
  Settings settings;
  settings.add("moves", moves, "Whether there is momentum.");
  settings.add("momentum", momentum, "Share of the last update.").below(1).read_if([&moves] { return moves; });
  settings.add("rate", rate, "How far.");
  EXPECT_FALSE(settings.is_read("momentum"));
  EXPECT_TRUE(settings.is_read("rate"));
  settings.override_with("moves=true");
  EXPECT_TRUE(settings.is_read("momentum"));
}

TEST(SettingsTest, ReadsFilesAndNamesThem) {
  Example example;
  Settings settings = describe(example);
  {
    const TemporaryFile file("model:\n  layers: 9\n");
    settings.read_file(file.path());
    EXPECT_EQ(example.layers, 9);
  }
  const TemporaryFile broken("model:\n  layers: many\n");
  EXPECT_EQ(refusal([&] { settings.read_file(broken.path()); }),
            broken.path() + ":2: model.layers = many must be an integer");
}

TEST(SettingsTest, ResolvedYamlReadsAloud) {
  Example example;
  EXPECT_EQ(describe(example).resolved_yaml(),
            "run_dir: ''\n"
            "model:\n"
            "  layers: 4\n"
            "  dropout: 0\n"
            "  color: green\n"
            "optimizer:\n"
            "  lr: 0.001\n"
            "  nesterov: false\n"
            "data:\n"
            "  path: data/text.txt\n");
}

TEST(SettingsTest, ResolvedYamlRoundTripsAwkwardText) {
  for (const char* text : {"null", "~", "true",       "No",     "12",  "1e3", "-",  "- a",  "a: b", "a #b", " padded ",
                           "it's", "'", "\"quoted\"", "{a: 1}", "[1]", "*a",  "&a", "!tag", "%x",   "|",    ">",
                           "@",    "`", "\\n",        "ü/→",    "---", "...", "?",  ":",    "C:\\x"}) {
    Example example;
    example.path = text;
    EXPECT_EQ(read(describe(example).resolved_yaml()), example) << describe(example).resolved_yaml();
  }
}

TEST(SettingsTest, ResolvedYamlRoundTripsRandomValues) {
  const Key key = Key{1}.with("settings");
  uint64_t place = 0;
  const auto draw = [&](uint64_t below) { return bits64(key, place++) % below; };
  for (int trial = 0; trial < 2000; ++trial) {
    Example example;
    example.layers = static_cast<int64_t>(bits64(key, place++) >> draw(64));
    do example.lr = std::bit_cast<double>(bits64(key, place++));
    while (!std::isfinite(example.lr));
    example.dropout = uniform(key, place++);
    example.nesterov = draw(2) == 1;
    example.color = static_cast<Color>(draw(3));
    example.path.clear();
    for (uint64_t length = draw(20); length > 0; --length) {
      const char c = static_cast<char>(0x20 + draw(0xe0));  // every byte but control characters
      if (c != 0x7f) example.path += c;
    }
    Example copy;
    Settings settings = describe(copy);
    const auto yaml = describe(example).resolved_yaml();
    settings.read_text(yaml, "copy.yaml");
    ASSERT_EQ(copy, example) << yaml;
    ASSERT_EQ(settings.resolved_yaml(), yaml);
  }
}

TEST(SettingsTest, HelpTellsEverythingInAlignedColumns) {
  Example example;
  EXPECT_EQ(describe(example).help(),
            "Settings that stand by themselves.\n"
            "  run_dir             \"\"             Folder of the run. [text]\n"
            "\n"
            "model: The network.\n"
            "  model.layers        4              Blocks of the network. [integer, blocks, at least 1]\n"
            "  model.dropout       0              Share that is dropped. [number, at least 0 and below 1]\n"
            "  model.color         green          Paint. [red | green | blue]\n"
            "\n"
            "optimizer: The update.\n"
            "  optimizer.lr        0.001          Learning rate. [number, above 0 and at most 10]\n"
            "  optimizer.nesterov  false          Look ahead. [true or false]\n"
            "\n"
            "data: The input.\n"
            "  data.path           data/text.txt  The file. [text]\n");
}

TEST(SettingsTest, HelpStaysWithin110Columns) {
  int64_t field = 3;
  std::string sentence = "Word";
  for (int i = 0; i < 60; ++i) sentence += " word";
  Settings settings;
  settings.add("key", field, sentence);
  std::istringstream lines(settings.help());
  size_t longest = 0;
  for (std::string line; std::getline(lines, line);) longest = std::max(longest, line.size());
  EXPECT_LE(longest, 110u);
  EXPECT_GT(longest, 100u);
}

TEST(SettingsTest, MarkdownHasATableForEverySection) {
  Example example;
  const auto page = describe(example).markdown();
  EXPECT_THAT(page, HasSubstr("## model\n\nThe network.\n\n"
                              "| key | type | unit | default | bounds | meaning |\n"
                              "| --- | --- | --- | --- | --- | --- |\n"
                              "| `model.layers` | integer | blocks | `4` | at least 1 | Blocks of the network. |\n"));
  EXPECT_THAT(page, HasSubstr("| `model.color` | red \\| green \\| blue |  | `green` |  | Paint. |\n"));
  EXPECT_THAT(page, HasSubstr("## Without a section\n"));
}

TEST(SettingsTest, DefaultsAreTheValuesAtDeclaration) {
  Example example{.layers = 99};
  Settings settings = describe(example);
  settings.override_with("model.layers=3");
  EXPECT_THAT(settings.help(), HasSubstr("  99 "));
  EXPECT_THAT(settings.resolved_yaml(), HasSubstr("layers: 3\n"));
}

TEST(SettingsTest, FilesHaveTheVersionThatTheyWereWrittenFor) {
  Example example;
  Settings settings = describe(example);
  settings.add_version(3, "Written for.");
  const auto resolved = settings.resolved_yaml();
  EXPECT_THAT(resolved, testing::StartsWith("run_dir: ''\nversion: 3\n"));
  EXPECT_THAT(settings.help(), HasSubstr("  version             3              Written for. [integer, at least 1]\n"));
  for (const char* yaml : {"version: 2\nmodel: {layers: 7}", "model: {layers: 8}", "model: {layers: 9}\nversion: 3"}) {
    settings.read_text(yaml, "a.yaml");
    EXPECT_THAT(settings.resolved_yaml(), HasSubstr("version: 3\n")) << "after " << yaml;
  }
  EXPECT_EQ(example.layers, 9);
  settings.read_text(resolved, "resolved.yaml");
  EXPECT_EQ(settings.resolved_yaml(), resolved);
  // The version is looked at first: a newer file's other keys may be unknown here.
  EXPECT_EQ(refusal([&] { settings.read_text("engine: warp\nversion: 4\n", "a.yaml"); }),
            "a.yaml:2: version = 4: made by a newer Trireme than this one, which reads configurations up to version 3: "
            "use the newer program");
  EXPECT_EQ(refusal([&] { settings.read_text("version: new", "a.yaml"); }),
            "a.yaml:1: version = new must be an integer");
  EXPECT_EQ(refusal([&] { settings.read_text("version: 0", "a.yaml"); }), "a.yaml:1: version = 0 must be at least 1");
  EXPECT_EQ(refusal([&] { settings.read_text("version: [3]", "a.yaml"); }),
            "a.yaml:1: version must have one value (integer), not a list");
  EXPECT_EQ(refusal([&] { settings.read_text("version: 3\nversion: 3", "a.yaml"); }),
            "a.yaml:2: version is given twice, first in line 1");
  EXPECT_EQ(refusal([&] { settings.override_with("version=3"); }),
            "command line: version says for which version a file was written, it cannot be set");
  EXPECT_THAT(refusal([&] { read("version: 1"); }), HasSubstr("a.yaml:1: unknown key version"));  // without versions
}

TEST(SettingsTest, MovingKeepsFieldsAndReferences) {
  Example example;
  Settings first = describe(example);
  int64_t more = 1;
  Setting& setting = first.add("model.more", more, "");
  Settings second = std::move(first);
  setting.at_least(5);
  second.override_with("model.layers=8");
  EXPECT_EQ(example.layers, 8);
  EXPECT_THAT(refusal([&] { second.check(); }), HasSubstr("model.more = 1 must be at least 5"));
}

}  // namespace
}  // namespace trireme
