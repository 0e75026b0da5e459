// Matrices as products of two thin ones, by one step of the power method (PowerSGD: Vogels, Karimireddy, Jaggi 2019):
//
//   P = M·Q,   P orthonormal,   Q = Mᵀ·P,   M ≈ P·Qᵀ
//
// Both products are linear in M, so that ranks who sum P before it is made orthonormal, and Q after, hold the factors
// of the sum of their matrices. The caller keeps Q from step to step: the last one is a better start than any other.
//
// P, Q and the rest (what is in no matrix, or in one that is shorter as it is) are flat tensors of fp32 on the device
// of the values; the vectors of a factor lie behind each other, those of one matrix after those of another.
#pragma once

#include "trireme/codec/codec.h"

namespace trireme {

class LowRank {
 public:
  // The matrices do not overlap. `rank` is cut to the smaller side of a matrix, and one that the factors would make
  // longer, rank·(rows + columns) ≥ rows·columns, belongs to the rest.
  LowRank(std::vector<MatrixPlace> matrices, int64_t rank);

  int64_t p_count() const { return p_count_; }
  int64_t q_count() const { return q_count_; }
  int64_t rest_count(int64_t count) const { return count - inside_; }
  int64_t least_count() const { return end_; }  // of values that hold all matrices

  // A first Q, the same for the same key and shapes.
  void start(Key noise, const at::Tensor& q) const;
  void multiply(const at::Tensor& values, const at::Tensor& q, const at::Tensor& p) const;  // P = M·Q
  // Makes each matrix's vectors orthonormal; one that the others span becomes 0.
  void orthogonalise(const at::Tensor& p) const;
  void multiply_back(const at::Tensor& values, const at::Tensor& p, const at::Tensor& q) const;  // Q = Mᵀ·P
  // M = P·Qᵀ, or M + factor·P·Qᵀ; the rest is not touched.
  void reconstruct(const at::Tensor& p, const at::Tensor& q, const at::Tensor& values) const;
  void add_reconstructed(const at::Tensor& p, const at::Tensor& q, const at::Tensor& values, double factor = 1) const;

  // Pieces of the values that are in no factor, [begin, end), in their order.
  struct Piece {
    int64_t begin, end;
  };
  std::vector<Piece> rest(int64_t count) const;

 private:
  struct Factors {
    MatrixPlace place;
    int64_t rank, p_offset, q_offset;
  };
  static at::Tensor matrix_of(const at::Tensor& values, const Factors& factors);
  static at::Tensor p_of(const at::Tensor& p, const Factors& factors);
  static at::Tensor q_of(const at::Tensor& q, const Factors& factors);

  std::vector<Factors> factors_;
  int64_t p_count_ = 0, q_count_ = 0, inside_ = 0, end_ = 0;
};

}  // namespace trireme
