// Writes and reads the choices of algorithms.
#include "gemm_choices.h"

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <sstream>

namespace ds::cuda {

namespace {

/// Increase it if the layout of GemmProblem or the meaning of a line changes.
constexpr int kFormat = 1;

template <class T>
std::string hex_of(const T& value) {
  constexpr char kDigits[] = "0123456789abcdef";
  unsigned char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  std::string out;
  for (const unsigned char byte : bytes) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/// Reads a value of T from hexadecimal digits. Returns false if `hex` has another length or other
/// characters.
template <class T>
bool read_hex(const std::string& hex, T& value) {
  if (hex.size() != 2 * sizeof(T)) return false;
  unsigned char bytes[sizeof(T)];
  for (size_t i = 0; i < sizeof(T); ++i) {
    const int high = digit_of(hex[2 * i]), low = digit_of(hex[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    bytes[i] = static_cast<unsigned char>(high * 16 + low);
  }
  std::memcpy(&value, bytes, sizeof(T));
  return true;
}

}  // namespace

GemmChoices::GemmChoices(size_t library_version)
    : tag_(std::to_string(kFormat) + "." + std::to_string(library_version)) {}

const GemmChoice* GemmChoices::find(const GemmProblem& problem) const {
  const auto found = known_.find(problem);
  return found == known_.end() ? nullptr : &found->second;
}

void GemmChoices::add(const GemmProblem& problem, const GemmChoice& choice) {
  known_[problem] = choice;
  char times[64];
  std::snprintf(times, sizeof(times), " %.6f %.6f\n", static_cast<double>(choice.milliseconds),
                static_cast<double>(choice.first));
  timed_ += tag_ + " " + hex_of(problem) + " " + hex_of(choice.algorithm) + times;
}

void GemmChoices::read(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string tag, problem_hex, algorithm_hex;
    GemmChoice choice{};
    GemmProblem problem{};
    if (!(words >> tag >> problem_hex >> algorithm_hex >> choice.milliseconds >> choice.first))
      continue;
    if (tag != tag_ || !read_hex(problem_hex, problem)) continue;
    if (read_hex(algorithm_hex, choice.algorithm)) known_[problem] = choice;
  }
}

}  // namespace ds::cuda
