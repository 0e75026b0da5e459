#include "trireme/spec/action_table.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/paths.h"
#include "trireme/base/words.h"
#include "trireme/spec/action_list.h"
#include "trireme/spec/mesh.h"

namespace trireme {

namespace {

struct Cell {
  int part = 0, microbatch = 0;
  char kind = 'F';
};

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> words;
  size_t begin = 0;
  for (size_t end; (end = text.find(at, begin)) != std::string::npos; begin = end + 1)
    words.push_back(text.substr(begin, end - begin));
  words.push_back(text.substr(begin));
  return words;
}

std::string stripped(std::string text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '"'; };
  std::erase_if(text, is_space);
  return text;
}

bool number(const char*& at, const char* end, int& value) {
  const auto [next, error] = std::from_chars(at, end, value);
  const bool good = error == std::errc() && value >= 0 && value < 1000000;
  at = next;
  return good;
}

Cell parse_cell(const std::string& text, const std::string& where) {
  Cell cell;
  const char *at = text.data(), *end = at + text.size();
  bool good = number(at, end, cell.part) && at < end;
  if (good) cell.kind = *at++;
  good =
      good && std::string("FBIW").find(cell.kind) != std::string::npos && number(at, end, cell.microbatch) && at == end;
  if (!good) refuse("{}: '{}' is no action; one is like 0F3: part of the model, F, B, I or W, microbatch", where, text);
  return cell;
}

TaskKind kind_of(char letter) {
  return letter == 'F' ? TaskKind::forward : letter == 'W' ? TaskKind::weights : TaskKind::backward;
}

std::string shown(const StageAction& action, int part, bool split) {
  const char letter = action.kind == TaskKind::forward   ? 'F'
                      : action.kind == TaskKind::weights ? 'W'
                      : split                            ? 'I'
                                                         : 'B';
  return fmt::format("{}{}{}", part, letter, action.microbatch);
}

}  // namespace

ActionTable parse_action_table(const std::string& text, const std::string& source) {
  std::vector<std::vector<Cell>> rows;
  bool splits = false;
  for (const auto& line : split(text, '\n')) {
    if (stripped(line).find_first_not_of(',') == std::string::npos) continue;  // an empty line
    auto& row = rows.emplace_back();
    const auto cells = split(line, ',');
    for (size_t i = 0; i < cells.size(); ++i) {
      const auto word = stripped(cells[i]);
      if (word.empty()) continue;
      row.push_back(parse_cell(word, fmt::format("{}, row {}, cell {}", source, rows.size(), i + 1)));
      splits |= row.back().kind == 'I' || row.back().kind == 'W';
    }
  }
  if (rows.empty()) refuse("{} holds no actions", source);

  ActionTable table;
  table.source = source;
  table.stages = static_cast<int>(rows.size());
  int parts = 0;
  for (const auto& row : rows) {
    for (const auto& cell : row) {
      parts = std::max(parts, cell.part + 1);
      table.microbatches = std::max(table.microbatches, cell.microbatch + 1);
    }
  }
  if (parts % table.stages != 0)
    refuse("{} has {} rows and speaks of {} parts of the model: each row needs equally many", source, rows.size(),
           parts);
  table.chunks = parts / table.stages;
  const auto holds = [&](size_t row, int part) {
    return std::any_of(rows[row].begin(), rows[row].end(), [&](const auto& cell) { return cell.part == part; });
  };
  table.vee = table.chunks == 2 && table.stages > 1 && holds(0, parts - 1);
  const Mesh layout{.stages = table.stages, .chunks = table.chunks, .vee = table.vee};

  for (size_t r = 0; r < rows.size(); ++r) {
    const auto where = fmt::format("{}, row {}", source, r + 1);
    std::set<std::tuple<TaskKind, int, int>> seen;
    auto& actions = table.rows.emplace_back();
    const auto add = [&](TaskKind kind, const Cell& cell, int chunk) {
      if (!seen.insert({kind, cell.part, cell.microbatch}).second)
        refuse("{}: {} of microbatch {} through part {} is there twice", where, name(kind), cell.microbatch, cell.part);
      actions.push_back({kind, cell.microbatch, chunk});
    };
    for (const auto& cell : rows[r]) {
      if (layout.stage_of_part(cell.part) != static_cast<int>(r))
        refuse("{}: part {} belongs to row {} ({} parts lie {})", where, cell.part, layout.stage_of_part(cell.part) + 1,
               parts, table.vee ? "as a V" : "in turn");
      const int chunk = layout.chunk_of_part(cell.part);
      add(kind_of(cell.kind), cell, chunk);
      if (splits && cell.kind == 'B') add(TaskKind::weights, cell, chunk);
    }
    const size_t kinds = splits ? 3 : 2, wanted = kinds * static_cast<size_t>(table.chunks * table.microbatches);
    if (seen.size() == wanted) continue;
    for (const auto kind : {TaskKind::forward, TaskKind::backward, TaskKind::weights}) {
      for (int chunk = 0; chunk < table.chunks && (splits || kind != TaskKind::weights); ++chunk) {
        const int part = layout.part_of(static_cast<int>(r), chunk);
        for (int m = 0; m < table.microbatches; ++m) {
          if (!seen.count({kind, part, m}))
            refuse("{}: {} of microbatch {} through part {} is missing", where, name(kind), m, part);
        }
      }
    }
  }
  return table;
}

ActionTable read_action_table(const std::filesystem::path& path) {
  if (path.empty()) refuse("parallel.schedule = file: parallel.schedule_file must name a table of actions");
  constexpr uint64_t most_bytes = 100'000'000;
  try {
    return parse_action_table(read_input_text(path, "a table of actions", most_bytes), path.string());
  } catch (Error& error) {
    error.add_context("parallel.schedule_file");
    throw;
  }
}

const ActionList& ActionTable::actions_of(const StagePlace& place) const {
  if (place.stages != stages)
    refuse("{} is for {}, and the run has {}: set parallel.pipe={}", source, counted(stages, "stage"), place.stages,
           stages);
  if (!place.replicas.empty()) refuse("{}: a table of actions is for stages with equally many replicas", source);
  if (place.microbatches != microbatches) {
    refuse("{} is for {}, and a step has {}: change train.batch or train.microbatch", source,
           counted(microbatches, "microbatch", "microbatches"), place.microbatches);
  }
  return rows[static_cast<size_t>(place.stage)];
}

std::string action_table_text(const std::vector<ActionList>& rows, bool vee) {
  int chunks = 1;
  bool split = false;
  for (const auto& row : rows) {
    for (const auto& action : row) chunks = std::max(chunks, action.chunk + 1);
    split |= splits(row);
  }
  const Mesh layout{.stages = static_cast<int>(rows.size()), .chunks = chunks, .vee = vee};
  std::string text;
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t i = 0; i < rows[r].size(); ++i) {
      const auto& action = rows[r][i];
      text += (i > 0 ? "," : "") + shown(action, layout.part_of(static_cast<int>(r), action.chunk), split);
    }
    text += "\n";
  }
  return text;
}

}  // namespace trireme
