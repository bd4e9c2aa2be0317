// Records which collectives each rank has issued. If ranks disagree, stall or die, it decides on
// the one failure of the job.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace ds::comm {

/// The failure that ends a job, equal on all ranks: the fields of a DS_COMM error.
struct JobFailure {
  std::string op, expected, got, hint;
};

/// A sequence of collectives that all its ranks must issue in the same order. It belongs to a
/// group, or to one direction between two ranks.
struct Channel {
  std::string name;
  std::vector<int> ranks;
};

/// Returns "allReduce sum f32 x 100 (gradients of h.3), collective 12 of world" for messages.
/// `text` is `signature | label`.
std::string place_of(const std::string& channel, uint64_t sequence, const std::string& text);

/// Returns the error record that a rank sends instead of a collective. If all ranks send the same
/// record, they agree. Ranks that issue a collective receive the error.
std::string text_of_error(const std::string& error);

/// The board, without sockets and clocks. The text of a collective is `signature | label`. For one
/// sequence number all signatures must be equal. Labels appear in messages only.
class ProgressBoard {
 public:
  void define(const Channel& channel);
  /// Reports that `rank` has issued collective `sequence` of the channel.
  void started(int rank, const std::string& channel, uint64_t sequence, const std::string& text);
  /// Reports that `rank` has waited for the collective for `seconds`, its time limit.
  void stalled(int rank, const std::string& channel, uint64_t sequence, double seconds);
  /// Reports that `rank` could not run the collective.
  void failed(int rank, const std::string& channel, uint64_t sequence, const std::string& reason);
  /// Reports that `rank` issues no more collectives but still runs. Only ranks that wait for one
  /// fail.
  void finished(int rank);
  /// Reports that `rank` has ended. If it announced its end (`clean`), only ranks that wait for it
  /// fail.
  void left(int rank, bool clean, const std::string& reason);

  const std::optional<JobFailure>& failure() const { return failure_; }

 private:
  struct Entry {
    std::string text;
    int first_rank;
    size_t arrived = 0;
  };
  struct State {
    std::vector<int> ranks;
    std::unordered_map<int, uint64_t> issued;   // by rank: number of issued collectives
    std::unordered_map<int, std::string> last;  // by rank: the newest collective
    std::map<uint64_t, Entry> open;             // collectives that some ranks have not issued yet
  };

  struct Departure {
    std::string how;
    bool finished;  // reported by finished() before
  };

  State* state_of(const std::string& channel);
  /// Returns the failure if `rank` issued another collective than the first rank.
  JobFailure disagreement(const std::string& place, const Entry& entry, int rank,
                          const std::string& text) const;
  void check_departed(const std::string& name, const State& state);
  void depart(int rank, Departure departure);
  /// Lists the ranks that have not issued collective `sequence`, or only departed ranks among them,
  /// because the others may be late.
  std::string missing_of(const State& state, uint64_t sequence, bool departed_only) const;
  void decide(JobFailure failure);

  std::map<std::string, State> channels_;
  std::map<int, Departure> departed_;  // by rank
  std::map<int, std::string> errors_;  // by rank: its newest error, until its next collective
  std::optional<JobFailure> failure_;
};

}  // namespace ds::comm
