// Samples the next token of each sequence from its scores, with the sequence's sampling parameters.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// Columns of SampleTokens::settings.
enum SampleSetting {
  kTemperature,
  kTopP,
  kMinP,
  kRepetition,
  kPresence,
  kFrequency,
  kSampleSettings
};
/// Columns of SampleTokens::numbers.
enum SampleNumber {
  kPosition,   // index of the next token: tokens of the sequence so far
  kGenerated,  // how many of them were sampled
  kTopK,       // 0 means all
  kSeedLow,
  kSeedHigh,
  kCountsRow,  // -1 means none
  kBiasRow,    // -1 means none
  kMaskRow,    // -1 means none
  kSampleNumbers
};
/// Columns of SampleTokens::bans before the tokens.
enum SampleBan { kBanSlot, kBanUntil, kBanLength, kBanTokens };

/// Number of recent tokens that a banned sequence is compared with.
constexpr int64_t kSampleRecent = 64;

/// Samples the next token for each row, a sequence with the parameters in its slot. The token is -1
/// if a score is NaN or +infinity, and -2 if no token is allowed. In both cases the slot is
/// unchanged and the logprobs are NaN. Scores are converted to f32 and processed in this order:
///
/// 1. Add bias.
/// 2. Divide scores of tokens that occur in the sequence by `repetition`; multiply negative ones
///    instead.
/// 3. Subtract frequency times the number of times the token was sampled.
/// 4. Subtract presence if the token was sampled at least once.
/// 5. Exclude tokens with a mask bit of 0, and tokens that would complete a banned sequence. If the
///    temperature is 0, the largest score wins, the first of equal ones.
/// 6. y = (score - largest) / temperature.
/// 7. Exclude scores below the top_k-th; equal ones stay.
/// 8. In ascending order (equal scores by column), exclude tokens while the running sum of e^y is
///    at most (1 - top_p) of the whole. The last one always stays.
/// 9. Exclude tokens with e^y < min_p.
///
/// The token with the largest y - log(E) wins, where E of token c is exponential, from word c % 4
/// of block c / 4 of the stream (seed, position). This draws from softmax(y) (Gumbel-max) and
/// depends on neither row nor slot. Sources: the logits processors of transformers; presence and
/// frequency penalties of OpenAI's API.
///
/// e^y is an integer, 2^38 for the largest. So the order of sums does not matter, and all back ends
/// give the same tokens.
struct SampleTokens {
  View scores;  // [S, V] f32, f16 or bf16; rows contiguous
  View slots;   // [S] i32, no two equal
  View tokens;  // [S] i32
  OptionalView
      logprobs;   // [S, 2] f32: log-probability of the token by raw scores, and their log-sum-exp
  View settings;  // [slots, 6] f32: temperature, top_p (1: all), min_p, repetition, presence,
                  // frequency
  View numbers;   // [slots, 8] i32: position and generated (both updated), top_k, seed, rows of
                  // counts, bias and masks
  View recent;    // [slots, 64] i32: the token at position p is in column p % 64; updated
  OptionalView
      counts;  // [.., V] i32: twice the times it was sampled, plus 1 if the prompt has it; updated
  OptionalView bias;   // [.., V] f32
  OptionalView masks;  // [.., ceil(V / 32)] i32: bit t % 32 of word t / 32 is 1 to allow token t
  OptionalView bans;   // [B, 3 + L] i32: slot, sampled tokens until which it holds, length, tokens
};

inline void check(const SampleTokens& op) {
  constexpr const char* kOp = "sample_tokens";
  require_narrow(kOp, op.scores, "scores");
  require_rows(kOp, op.scores, 2, "scores", "[S, V]");
  const int64_t rows = op.scores.shape[0], vocabulary = op.scores.shape[1];
  DS_CHECK_SHAPE(vocabulary > 0 && vocabulary < int64_t{1} << 24, kOp,
                 "a vocabulary of 1 to 2^24 - 1 tokens", op.scores.describe());
  require_list(kOp, op.slots, rows, DType::i32, "slots");
  require_list(kOp, op.tokens, rows, DType::i32, "tokens");
  if (op.logprobs) require_list(kOp, op.logprobs, 2 * rows, DType::f32, "logprobs");
  DS_CHECK_SHAPE(op.settings.ndim == 2, kOp, "settings [slots, 6]", op.settings.describe());
  const int64_t slots = op.settings.shape[0];
  require_list(kOp, op.settings, slots * kSampleSettings, DType::f32, "settings");
  require_list(kOp, op.numbers, slots * kSampleNumbers, DType::i32, "numbers");
  require_list(kOp, op.recent, slots * kSampleRecent, DType::i32, "recent");
  const auto require_table = [&](const OptionalView& table, DType dtype, const char* name) {
    if (!table) return;
    DS_CHECK_SHAPE(table.ndim == 2 && table.shape[1] == vocabulary, kOp,
                   text(name, " [.., ", vocabulary, "]"), table.describe());
    require_dtype(kOp, table, dtype, name);
    require_contiguous(kOp, table, name);
  };
  require_table(op.counts, DType::i32, "counts");
  require_table(op.bias, DType::f32, "bias");
  if (op.masks) {
    const int64_t words = (vocabulary + 31) / 32;
    DS_CHECK_SHAPE(op.masks.ndim == 2 && op.masks.shape[1] == words, kOp,
                   text("masks [.., ", words, "]"), op.masks.describe());
    require_dtype(kOp, op.masks, DType::i32, "masks");
    require_contiguous(kOp, op.masks, "masks");
  }
  if (!op.bans) return;
  DS_CHECK_SHAPE(op.bans.ndim == 2 && op.bans.shape[1] > kBanTokens, kOp, "bans [B, 4 or more]",
                 op.bans.describe());
  require_dtype(kOp, op.bans, DType::i32, "bans");
  require_contiguous(kOp, op.bans, "bans");
}

}  // namespace ds
