// In place of clp.cpp where Clp is missing.
#include "trireme/base/error.h"
#include "trireme/fleet/lp/linear_program.h"

namespace trireme::fleet {

struct LinearProgram::Model {};

LinearProgram::LinearProgram() {
  refuse(
      "this policy needs the solver Clp: install coinor-libclp-dev and build again, or choose a policy without pairs");
}
LinearProgram::~LinearProgram() = default;

int LinearProgram::add_row(double, double) { return 0; }
int LinearProgram::add_column(double, double, double, std::span<const Entry>) { return 0; }
void LinearProgram::set_row(int, double, double) {}
void LinearProgram::set_cost(int, double) {}
LinearProgram::Basis LinearProgram::basis() const { return {}; }
void LinearProgram::start_from(const Basis&) {}
bool LinearProgram::minimize() { return false; }
double LinearProgram::cost() const { return 0; }
double LinearProgram::value(int) const { return 0; }
double LinearProgram::row_price(int) const { return 0; }
double LinearProgram::reduced_cost(int) const { return 0; }
void LinearProgram::close_worse() {}

}  // namespace trireme::fleet
