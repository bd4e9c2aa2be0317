// Records the collectives that every rank has issued, and derives the one failure if ranks
// disagree, stall or die.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace ds::comm {

/// The failure that ends a job: the fields of one DS_COMM error, the same on every rank.
struct Verdict {
  std::string op, expected, got, hint;
};

/// A sequence of collectives that its ranks must issue in the same order: a group, or one direction
/// between two of its ranks.
struct Channel {
  std::string name;
  std::vector<int> ranks;
};

/// Returns "allReduce sum f32 x 100 (gradients of h.3), collective 12 of world" for messages.
/// `text` is `signature | label`.
std::string place_of(const std::string& channel, uint64_t sequence, const std::string& text);

/// Returns the error record that replaces a collective of a rank with `error`. Ranks with the same
/// record agree; all other ranks receive the error.
std::string text_of_error(const std::string& error);

/// Pure bookkeeping without sockets or clocks. A collective is described by `signature | label`.
/// The signatures of one sequence number must agree; labels only appear in messages.
class ProgressBoard {
 public:
  void define(const Channel& channel);
  /// Reports that `rank` has issued number `sequence` of the channel.
  void started(int rank, const std::string& channel, uint64_t sequence, const std::string& text);
  /// Reports that `rank` has waited for it for `seconds`, its limit.
  void stalled(int rank, const std::string& channel, uint64_t sequence, double seconds);
  /// `rank` could not carry it out.
  void failed(int rank, const std::string& channel, uint64_t sequence, const std::string& reason);
  /// Reports that `rank` issues no more collectives but still runs. Fails only ranks that wait for
  /// a collective of it.
  void finished(int rank);
  /// Reports that `rank` has ended; `clean` if it announced the end. A clean end fails only ranks
  /// that still wait for it.
  void left(int rank, bool clean, const std::string& reason);

  const std::optional<Verdict>& verdict() const { return verdict_; }

 private:
  struct Entry {
    std::string text;
    int first_rank;
    size_t arrived = 0;
  };
  struct State {
    std::vector<int> ranks;
    std::unordered_map<int, uint64_t> issued;   // by rank: how many
    std::unordered_map<int, std::string> last;  // by rank: its newest
    std::map<uint64_t, Entry> open;             // not issued by all yet
  };

  struct Departure {
    std::string how;
    bool finished;  // it announced finished() before
  };

  State* state_of(const std::string& channel);
  /// Returns the failure for a `rank` that issued a different collective than the first rank.
  Verdict disagreement(const std::string& place, const Entry& entry, int rank,
                       const std::string& text) const;
  void check_departed(const std::string& name, const State& state);
  void depart(int rank, Departure departure);
  /// Returns the ranks that have not issued the number: all of them, or only departed ones, because
  /// others may be late.
  std::string missing_of(const State& state, uint64_t sequence, bool departed_only) const;
  void decide(Verdict verdict);

  std::map<std::string, State> channels_;
  std::map<int, Departure> departed_;  // by rank
  std::map<int, std::string> errors_;  // by rank: the newest, until it goes on
  std::optional<Verdict> verdict_;
};

}  // namespace ds::comm
