// What Settings says to mistakes: every class of them, with its text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/base/settings_example.h"
#include "trireme/base/settings.h"

namespace trireme {
namespace {

using testing::HasSubstr;

std::string refusal_of(const std::string& yaml) {
  return refusal([&] { read(yaml); });
}

std::string refusal_of_override(const std::string& assignment) {
  return refusal([&] {
    Example example;
    Settings settings = describe(example);
    settings.override_with(assignment);
    settings.check();
  });
}

TEST(SettingsRefusalTest, RefusesIllTypedIntegers) {
  const auto refused = [](const std::string& value) { return refusal_of("model:\n  layers: " + value); };
  for (const char* value : {"twelve", "3.5", "0x10", "1_000", "12 layers", "1e-3", ".inf", "nan", "true", "+-3"}) {
    EXPECT_EQ(refused(value), fmt::format("a.yaml:2: model.layers = {} must be an integer", value));
  }
  EXPECT_EQ(refused("''"), "a.yaml:2: model.layers = \"\" must be an integer");
  EXPECT_EQ(refused("9223372036854775808"),
            "a.yaml:2: model.layers = 9223372036854775808 is outside the range of a 64-bit integer");
  EXPECT_EQ(refused("1e17"), "a.yaml:2: model.layers = 1e17 is too large for this notation, write all its digits");
  EXPECT_EQ(refused("[1, 2]"), "a.yaml:2: model.layers must have one value (integer), not a list");
  EXPECT_EQ(refused("{a: 1}"), "a.yaml:2: model.layers must have one value (integer), not a map");
  EXPECT_EQ(refused(""), "a.yaml:2: model.layers must have one value (integer), not nothing");
  EXPECT_EQ(refused("~"), "a.yaml:2: model.layers must have one value (integer), not nothing");
}

TEST(SettingsRefusalTest, RefusesIllTypedNumbers) {
  const auto refused = [](const std::string& value) { return refusal_of("optimizer:\n\n  lr: " + value); };
  for (const char* value : {"much", ".nan", ".inf", "1.2.3", "1,5", "0x1p3", "3e"}) {
    EXPECT_EQ(refused(value), fmt::format("a.yaml:3: optimizer.lr = {} must be a number", value));
  }
  for (const char* value : {"nan", "inf", "-inf", "infinity"}) {
    EXPECT_EQ(refused(value), fmt::format("a.yaml:3: optimizer.lr = {} must be finite", value));
  }
  EXPECT_EQ(refused("1e400"), "a.yaml:3: optimizer.lr = 1e400 is outside the range of a double");
  EXPECT_EQ(refused("null"), "a.yaml:3: optimizer.lr must have one value (number), not nothing");
}

TEST(SettingsRefusalTest, RefusesOtherWordsForTrueAndFalse) {
  for (const char* value : {"yes", "on", "1", "True", "TRUE"}) {
    EXPECT_EQ(refusal_of(fmt::format("optimizer: {{nesterov: {}}}", value)),
              fmt::format("a.yaml:1: optimizer.nesterov = {} must be true or false", value));
  }
}

TEST(SettingsRefusalTest, RefusesUnknownChoices) {
  EXPECT_EQ(refusal_of("model: {color: gren}"),
            "a.yaml:1: model.color = gren must be one of red, green, blue (did you mean green?)");
  EXPECT_EQ(refusal_of("model: {color: turquoise}"),
            "a.yaml:1: model.color = turquoise must be one of red, green, blue");
}

TEST(SettingsRefusalTest, RefusesControlCharactersInText) {
  EXPECT_THAT(refusal_of("data: {path: \"a\\nb\"}"), HasSubstr("must be one line without control characters"));
}

TEST(SettingsRefusalTest, RefusesValuesOutOfBounds) {
  EXPECT_EQ(refusal_of("optimizer: {lr: -1}"), "a.yaml:1: optimizer.lr = -1 must be above 0 and at most 10");
  EXPECT_EQ(refusal_of("optimizer: {lr: 0}"), "a.yaml:1: optimizer.lr = 0 must be above 0 and at most 10");
  EXPECT_EQ(refusal_of("optimizer: {lr: 10}"), "(accepted)");
  EXPECT_EQ(refusal_of("optimizer: {lr: 10.5}"), "a.yaml:1: optimizer.lr = 10.5 must be above 0 and at most 10");
  EXPECT_EQ(refusal_of("model: {dropout: 0}"), "(accepted)");
  EXPECT_EQ(refusal_of("model: {dropout: 1}"), "a.yaml:1: model.dropout = 1 must be at least 0 and below 1");
  EXPECT_EQ(refusal_of("model: {layers: 1}"), "(accepted)");
  EXPECT_EQ(refusal_of("model: {layers: 0}"), "a.yaml:1: model.layers = 0 must be at least 1");
  EXPECT_EQ(refusal_of_override("model.layers=0"), "command line: model.layers = 0 must be at least 1");
}

TEST(SettingsRefusalTest, ChecksValuesThatTheProgramPutThere) {
  Example example;
  Settings settings = describe(example);
  example.lr = std::nan("");
  EXPECT_EQ(refusal([&] { settings.check(); }), "default: optimizer.lr = nan must be above 0 and at most 10");
}

TEST(SettingsRefusalTest, RefusesUnknownKeysWithTheNearest) {
  EXPECT_EQ(refusal_of("model:\n  layer: 3\n"), "a.yaml:2: unknown key model.layer, did you mean model.layers?");
  EXPECT_EQ(refusal_of("modle: {layers: 3}"), "a.yaml:1: unknown key modle, did you mean model?");
  EXPECT_EQ(refusal_of("modle.layers: 3"), "a.yaml:1: unknown key modle.layers, did you mean model.layers?");
  EXPECT_EQ(refusal_of("modle.layer: 3"), "a.yaml:1: unknown key modle.layer, did you mean model.layers?");
  EXPECT_EQ(refusal_of("layer: 3"), "a.yaml:1: unknown key layer, did you mean model.layers?");
  EXPECT_EQ(refusal_of("rundir: x"), "a.yaml:1: unknown key rundir, did you mean run_dir?");
  EXPECT_EQ(refusal_of_override("model.layer=3"), "command line: unknown key model.layer, did you mean model.layers?");
}

TEST(SettingsRefusalTest, AKeyInTheWrongSectionIsSuggestedInFull) {
  EXPECT_EQ(refusal_of("model: {lr: 1}"), "a.yaml:1: unknown key model.lr, did you mean optimizer.lr?");
  EXPECT_EQ(refusal_of("lr: 1"), "a.yaml:1: unknown key lr, did you mean optimizer.lr?");
  EXPECT_EQ(refusal_of("optimizer: {layer: 1}"), "a.yaml:1: unknown key optimizer.layer, did you mean model.layers?");
  EXPECT_EQ(refusal_of("model: {run_dir: x}"), "a.yaml:1: unknown key model.run_dir, did you mean run_dir?");
}

TEST(SettingsRefusalTest, ANameInSeveralSectionsIsSuggestedWithAll) {
  int64_t one = 1, two = 2;
  Settings settings;
  settings.section("log", "");
  settings.section("checkpoint", "");
  settings.add("log.every", one, "");
  settings.add("checkpoint.every", two, "");
  EXPECT_EQ(refusal([&] { settings.override_with("every=3"); }),
            "command line: unknown key every, did you mean log.every or checkpoint.every?");
  EXPECT_EQ(refusal([&] { settings.override_with("lgo.every=3"); }),
            "command line: unknown key lgo.every, did you mean log.every?");
}

TEST(SettingsRefusalTest, AKeyNearNothingIsToldWhatThereIs) {
  EXPECT_EQ(refusal_of("model: {embedding_size: 3}"),
            "a.yaml:1: unknown key model.embedding_size, model has layers, dropout, color");
  EXPECT_EQ(refusal_of("something_else: {a: 3}"),
            "a.yaml:1: unknown key something_else, the sections are model, optimizer, data");
  EXPECT_EQ(refusal_of("parallel.layer: 3"),
            "a.yaml:1: unknown key parallel.layer, the sections are model, optimizer, data");
}

TEST(SettingsRefusalTest, RefusesDuplicatesAtEveryLevel) {
  EXPECT_EQ(refusal_of("model:\n  layers: 3\n  dropout: 0\n  layers: 3\n"),
            "a.yaml:4: model.layers is given twice, first in line 2");
  EXPECT_EQ(refusal_of("model: {layers: 3}\nmodel: {dropout: 0}\n"), "a.yaml:2: model is given twice, first in line 1");
  EXPECT_EQ(refusal_of("run_dir: a\nrun_dir: a\n"), "a.yaml:2: run_dir is given twice, first in line 1");
  EXPECT_EQ(refusal_of("model: {layers: 3}\nmodel.layers: 4\n"),
            "a.yaml:2: model.layers is given twice, first in line 1");
}

TEST(SettingsRefusalTest, RefusesAnotherShapeThanAMapOfSections) {
  EXPECT_EQ(refusal_of("- a\n- b\n"), "a.yaml:1: a configuration is a map of sections, not a list");
  EXPECT_EQ(refusal_of("\nhello\n"), "a.yaml:2: a configuration is a map of sections, not a single value");
  EXPECT_EQ(refusal_of("model: gpt\n"),
            "a.yaml:1: model must be a map of settings (layers, dropout, color), not a single value");
  EXPECT_EQ(refusal_of("model: [1]\n"),
            "a.yaml:1: model must be a map of settings (layers, dropout, color), not a list");
  EXPECT_EQ(refusal_of("? [a, b]\n: 3\n"), "a.yaml:1: a key must be a word, not a list");
  EXPECT_EQ(refusal_of("run_dir: a\n---\nrun_dir: b\n"), "a.yaml:3: holds 2 YAML documents, a configuration is one");
}

TEST(SettingsRefusalTest, RefusesBrokenYamlWithItsLine) {
  EXPECT_EQ(refusal_of("model:\n  layers: 3\n  dropout: [1\n"),
            "a.yaml:4: not valid YAML at column 1: a [ is not closed by a ]");
  EXPECT_EQ(refusal_of("model:\n\tlayers: 3\n"),
            "a.yaml:2: not valid YAML at column 1: a tab indents this line: use spaces; the line is \"layers: 3\"");
  EXPECT_EQ(refusal_of("model: *missing\n"),
            "a.yaml:1: not valid YAML at column 8: * refers to something that & has not named: put a text that begins "
            "with * in quotes; the line is \"model: *missing\"");
  EXPECT_EQ(refusal_of("model: layers: 3\n"),
            "a.yaml:1: not valid YAML at column 14: a colon cannot stand here: a line has one key (put a text with a "
            "colon in quotes), and the line above may lack its own colon; the line is \"model: layers: 3\"");
  EXPECT_EQ(refusal_of("model:\n  layers: 3\n dropout: 0\n"),
            "a.yaml:3: not valid YAML at column 2: this line does not belong to the keys above it: it is indented "
            "unlike them, or no key; the line is \"dropout: 0\"");
  EXPECT_EQ(refusal_of("run_dir: @home\n"),
            "a.yaml:1: not valid YAML at column 10: no value can begin with this character: put the text in quotes; "
            "the line is \"run_dir: @home\"");
  EXPECT_EQ(refusal_of("run_dir: \"a\\qb\"\n"),
            "a.yaml:1: not valid YAML at column 14: an unknown escape stands in double quotes: single quotes escape "
            "nothing; the line is \"run_dir: \"a\\qb\"\"");
  EXPECT_THAT(refusal_of(std::string(100000, '[')), HasSubstr("it is nested too deeply"));
  // A long line is cut, between two characters.
  EXPECT_THAT(refusal_of("run_dir: @" + std::string(49, 'x') + "äöü\n"),
              testing::EndsWith(std::string(49, 'x') + " ...\""));
}

TEST(SettingsRefusalTest, NeverPassesOnTheWordsOfTheYamlLibrary) {
  for (const char* yaml : {"a: ]\n", "a: {b: 1\n", "key\nb: 2\n", "a: &\n", "a: *\n", "- - a\n b\n", "a: !<x y\n",
                           "a: \"\\x1z\"\n", "a: |x\n b\n", "a: `x`\n", "a: %x\n", "\"a\n---\nb\"\n"}) {
    EXPECT_THAT(refusal_of(yaml), testing::Not(testing::AnyOf(HasSubstr("illegal"), HasSubstr("end of"),
                                                              HasSubstr("scanning"), HasSubstr("token"))))
        << yaml;
  }
}

TEST(SettingsRefusalTest, AnAnchorThatHoldsItselfEnds) {
  EXPECT_THAT(refusal_of("model: &loop {layers: *loop}\n"), HasSubstr("a.yaml:1: "));
}

TEST(SettingsRefusalTest, RefusesOverridesThatGiveNothing) {
  EXPECT_EQ(refusal_of_override("fast"),
            "command line: \"fast\" gives no value to a setting, write key=value, for example model.layers=4");
  EXPECT_EQ(refusal_of_override("optimizer.lr"),
            "command line: \"optimizer.lr\" gives no value to a setting, write key=value, for example "
            "optimizer.lr=0.001");
  EXPECT_THAT(refusal_of_override("=3"), HasSubstr("\"=3\" gives no value to a setting"));
  EXPECT_EQ(refusal_of_override("model=gpt"),
            "command line: model = gpt must name one setting of the section: layers, dropout, color");
  EXPECT_EQ(refusal_of_override("model.layers="), "command line: model.layers = \"\" must be an integer");
}

TEST(SettingsRefusalTest, RefusesMissingFilesAndFolders) {
  Example example;
  Settings settings = describe(example);
  EXPECT_EQ(refusal([&] { settings.read_file("no/such/file.yaml"); }), "no/such/file.yaml: there is no such file");
  EXPECT_EQ(refusal([&] { settings.read_file("/"); }), "/: this is a folder, not a configuration file");
  EXPECT_EQ(refusal([&] { settings.read_file("/dev/zero"); }), "/dev/zero: this is a device, not a configuration file");
}

TEST(SettingsRefusalTest, SaysWhereBothOfTwoValuesCameFrom) {
  Example example;
  Settings settings = describe(example);
  const auto refused = [&] {
    return refusal([&] { settings.refuse_together("model.layers", "must be at most", "optimizer.lr"); });
  };
  EXPECT_EQ(refused(), "default: model.layers = 4 must be at most optimizer.lr = 0.001");
  settings.read_text("\noptimizer: {lr: 2}", "a.yaml");
  EXPECT_EQ(refused(), "a.yaml:2: model.layers = 4 (default) must be at most optimizer.lr = 2");
  settings.override_with("model.layers=5");
  EXPECT_EQ(refused(), "command line: model.layers = 5 must be at most optimizer.lr = 2 (a.yaml:2)");
}

TEST(SettingsRefusalTest, DeclarationsThatContradictThemselvesFail) {
  int64_t field = 1;
  Settings settings;
  EXPECT_THROW(settings.add("model.layers", field, ""), Error);  // no such section yet
  settings.section("model", "");
  settings.add("model.layers", field, "");
  EXPECT_THROW(settings.add("model.layers", field, ""), Error);
  EXPECT_THROW(settings.section("model", ""), Error);
  EXPECT_THROW(settings.add("model", field, ""), Error);
  auto color = static_cast<Color>(7);
  EXPECT_THROW(settings.add_choice("color", color, {{"red", Color::red}}, ""), Error);
}

}  // namespace
}  // namespace trireme
