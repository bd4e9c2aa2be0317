// The algorithms that timing selected, as text for later processes.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>

#include "gemm.h"

namespace ds::cuda {

/// The result of timing a problem.
struct GemmChoice {
  lt::Algorithm algorithm;
  float milliseconds;  // time of the selected algorithm
  float first;         // time of the library's first proposal
};

/// The choices for one GPU model and one version of cuBLASLt. The library's documentation allows
/// storing an algorithm as its 64 bytes for use with the same version.
class GemmChoices {
 public:
  explicit GemmChoices(size_t library_version);

  /// Returns the choice for a problem, or null.
  const GemmChoice* find(const GemmProblem& problem) const;
  void add(const GemmProblem& problem, const GemmChoice& choice);
  void drop(const GemmProblem& problem) { known_.erase(problem); }

  /// Adds the choices in a text that text() returned. Ignores lines of other versions and other
  /// text.
  void read(const std::string& text);
  /// Returns the choices that this process timed, one per line: tag, problem, algorithm, time of
  /// the algorithm and time of the first proposal, in milliseconds.
  std::string text() const { return timed_; }

 private:
  std::string tag_;  // identifies the format and the library's version
  std::unordered_map<GemmProblem, GemmChoice, Gemm::Hash> known_;
  std::string timed_;
};

}  // namespace ds::cuda
