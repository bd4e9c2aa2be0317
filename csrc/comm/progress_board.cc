// The rules of the board: a sequence number has one signature, and no rank waits for a rank that
// has left.
#include "progress_board.h"

#include <string_view>
#include <utility>

#include "../core/error.h"

namespace ds::comm {
namespace {

constexpr const char* kHint =
    "Every rank must issue the same collectives in the same order. Look at the named rank's own "
    "output first.";

constexpr const char* kUnevenHint =
    "Give every rank the same number of batches (drop the last ones), or call destroy() after all "
    "ranks are done. If that rank failed first, look at its output.";
constexpr const char* kEndedHint = "Look at that rank's own output: it ended first.";

constexpr const char* kErrorHint =
    "Fix the error of that rank: the other ranks wait for its collectives.";
constexpr std::string_view kError = "error | ";

std::string signature_of(const std::string& text) { return text.substr(0, text.find(" | ")); }

/// Formats "allReduce sum f32 x 100 | gradients of h.3" for a message.
std::string described(const std::string& text) {
  const size_t bar = text.find(" | ");
  if (bar == std::string::npos || bar + 3 == text.size()) return text.substr(0, bar);
  return text.substr(0, bar) + " (" + text.substr(bar + 3) + ")";
}

bool is_error(const std::string& text) { return text.starts_with(kError); }
/// Returns the error of an error record.
std::string error_in(const std::string& text) { return text.substr(kError.size()); }

}  // namespace

std::string text_of_error(const std::string& error) { return text(kError, error); }

std::string place_of(const std::string& channel, uint64_t sequence, const std::string& text) {
  return ds::text(described(text), ", collective ", sequence, " of ", channel);
}

ProgressBoard::State* ProgressBoard::state_of(const std::string& channel) {
  const auto found = channels_.find(channel);
  return found == channels_.end() ? nullptr : &found->second;
}

void ProgressBoard::decide(JobFailure failure) {
  if (!failure_) failure_ = std::move(failure);
}

void ProgressBoard::define(const Channel& channel) {
  channels_.try_emplace(channel.name, State{channel.ranks, {}, {}, {}});
}

void ProgressBoard::started(int rank, const std::string& channel, uint64_t sequence,
                            const std::string& text) {
  State* state = state_of(channel);
  if (!state) return;
  state->issued[rank] = sequence + 1;
  state->last[rank] = text;
  const auto [at, first] = state->open.try_emplace(sequence, Entry{text, rank});
  Entry& entry = at->second;
  if (is_error(text)) errors_[rank] = error_in(text);
  else errors_.erase(rank);
  if (!first && signature_of(entry.text) != signature_of(text)) {
    const std::string& wanted = is_error(entry.text) ? text : entry.text;
    decide(disagreement(place_of(channel, sequence, wanted), entry, rank, text));
  }
  if (++entry.arrived == state->ranks.size()) state->open.erase(at);
  if (!departed_.empty()) check_departed(channel, *state);
}

JobFailure ProgressBoard::disagreement(const std::string& place, const Entry& entry, int rank,
                                       const std::string& text) const {
  if (is_error(entry.text) || is_error(text)) {
    const auto [culprit, error] = is_error(text)
                                      ? std::pair(rank, error_in(text))
                                      : std::pair(entry.first_rank, error_in(entry.text));
    return {place, "every rank to take part", ds::text("rank ", culprit, " failed: ", error),
            kErrorHint};
  }
  return {place, "every rank to issue the same collective",
          ds::text("rank ", entry.first_rank, " issued ", described(entry.text), "; rank ", rank,
                   " issued ", described(text)),
          kHint};
}

std::string ProgressBoard::missing_of(const State& state, uint64_t sequence,
                                      bool departed_only) const {
  std::string out;
  for (int rank : state.ranks) {
    const auto issued = state.issued.find(rank);
    const uint64_t count = issued == state.issued.end() ? 0 : issued->second;
    if (count > sequence || (departed_only && !departed_.count(rank))) continue;
    out += ds::text(out.empty() ? "" : "; ", "rank ", rank);
    const std::string last =
        count == 0 ? "" : ds::text("collective ", count - 1, ", ", described(state.last.at(rank)));
    const auto departure = departed_.find(rank);
    if (departure != departed_.end() && departure->second.finished) {
      out += " " + departure->second.how +
             (count == 0 ? " and issued no collective here" : " after " + last);
      continue;
    }
    out += " did not arrive (";
    if (departure != departed_.end()) out += departure->second.how + "; ";
    out += count == 0 ? "it has issued no collective here)" : ds::text("its last was ", last, ")");
  }
  return out;
}

void ProgressBoard::stalled(int rank, const std::string& channel, uint64_t sequence,
                            double seconds) {
  State* state = state_of(channel);
  if (!state) return;
  const auto last = state->last.find(rank);
  const auto open = state->open.find(sequence);
  const std::string text = open != state->open.end()   ? open->second.text
                           : last != state->last.end() ? last->second
                                                       : "a collective";
  std::string missing = missing_of(*state, sequence, false);
  if (missing.empty()) missing = "every rank arrived, but the data did not: check the network";
  decide({place_of(channel, sequence, text),
          ds::text("all ", state->ranks.size(), " ranks to finish it within ", seconds, " s"),
          ds::text("rank ", rank, " timed out: ", missing),
          "Look at the output of the ranks that did not arrive. DEEPSPEED_TIMEOUT sets the limit, "
          "in minutes."});
}

void ProgressBoard::failed(int rank, const std::string& channel, uint64_t sequence,
                           const std::string& reason) {
  State* state = state_of(channel);
  const std::string text = state && state->last.count(rank) ? state->last[rank] : "a collective";
  decide({place_of(channel, sequence, text), "data from every rank",
          ds::text("rank ", rank, ": ", reason),
          "Check the network and the output of the other ranks."});
}

void ProgressBoard::depart(int rank, Departure departure) {
  departed_.try_emplace(rank, std::move(departure));
  for (const auto& [name, state] : channels_) check_departed(name, state);
}

void ProgressBoard::finished(int rank) { depart(rank, {"has left the job (job.destroy())", true}); }

void ProgressBoard::left(int rank, bool clean, const std::string& reason) {
  depart(rank, {reason, false});
  if (clean || failure_) return;
  const auto error = errors_.find(rank);
  const std::string before = error == errors_.end() ? "" : ds::text(" after ", error->second);
  decide({"process group", "every rank to stay until the end",
          ds::text("rank ", rank, ": ", reason, before), kEndedHint});
}

void ProgressBoard::check_departed(const std::string& name, const State& state) {
  for (const auto& [sequence, entry] : state.open) {
    if (is_error(entry.text)) continue;  // a rank with an error record waits for no rank
    const Departure* missing = nullptr;  // prefers an unexpected departure
    for (int rank : state.ranks) {
      const auto issued = state.issued.find(rank);
      const auto departure = departed_.find(rank);
      const bool arrived = issued != state.issued.end() && issued->second > sequence;
      if (arrived || departure == departed_.end()) continue;
      if (!missing || missing->finished) missing = &departure->second;
    }
    if (!missing) continue;
    decide({place_of(name, sequence, entry.text), ds::text("all ", state.ranks.size(), " ranks"),
            missing_of(state, sequence, true), missing->finished ? kUnevenHint : kEndedHint});
    return;
  }
}

}  // namespace ds::comm
