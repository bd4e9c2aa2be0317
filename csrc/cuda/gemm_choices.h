// The algorithms that timing selected, as text that a later process can read.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>

#include "gemm.h"

namespace ds::cuda {

/// One timed problem.
struct GemmChoice {
  lt::Algorithm algorithm;
  float milliseconds;  // of the algorithm
  float first;         // of the library's first proposal
};

/// The choices of one GPU model and one version of cuBLASLt. The library documents that an
/// algorithm may be stored as its 64 bytes and used by the same version of the library.
class GemmChoices {
 public:
  explicit GemmChoices(size_t library_version);

  /// Returns the choice for a problem, or null.
  const GemmChoice* find(const GemmProblem& problem) const;
  void add(const GemmProblem& problem, const GemmChoice& choice);
  void drop(const GemmProblem& problem) { known_.erase(problem); }

  /// Adds the choices of lines that text() wrote. Skips lines of other versions, and all other
  /// text.
  void read(const std::string& text);
  /// Returns the choices that this process timed, one a line: tag, problem, algorithm, milliseconds
  /// and milliseconds of the first proposal.
  std::string text() const { return timed_; }

 private:
  std::string tag_;  // of the format and of the library
  std::unordered_map<GemmProblem, GemmChoice, Gemm::Hash> known_;
  std::string timed_;
};

}  // namespace ds::cuda
