// Grammars for JavaScript: vocabularies, compiled grammars, and matchers of sequences.
#pragma once

#include <string>

#include "../grammar/matcher.h"
#include "entry.h"

namespace ds::addon {

using VocabularyRef = const grammar::Vocabulary;
using GrammarRef = grammar::Grammar;
using MatcherRef = grammar::Matcher;

/// Resolves with the handle of a vocabulary: token i has the bytes from offsets[i] to
/// offsets[i + 1]; tokens without bytes are never allowed. Rejects with DS_ARGUMENT.
DS_ENTRY Promise<double> create_vocabulary(Addon& addon, Bytes bytes, Integers offsets);
DS_ENTRY void release_vocabulary(Addon& addon, Handle<VocabularyRef> vocabulary);

/// Resolves with the handle of a grammar from its description (csrc/grammar/program.h). Rejects
/// with DS_ARGUMENT if no text matches, and with DS_LIMIT.
DS_ENTRY Promise<double> create_grammar(Addon& addon, Handle<VocabularyRef> vocabulary,
                                        Integers words);
DS_ENTRY void release_grammar(Addon& addon, Handle<GrammarRef> grammar);
/// Returns the bytes of the states and masks that the grammar keeps.
DS_ENTRY double grammar_bytes(Addon& addon, Handle<GrammarRef> grammar);

/// Returns the handle of a matcher at the start of a text. `ends` are allowed after a whole text.
DS_ENTRY double create_matcher(Addon& addon, Handle<GrammarRef> grammar, Integers ends);
DS_ENTRY void release_matcher(Addon& addon, Handle<MatcherRef> matcher);
/// Returns false, without an effect, for a token that the grammar does not allow. Throws DS_LIMIT.
DS_ENTRY bool accept_token(Addon& addon, Handle<MatcherRef> matcher, TokenNumber token);
/// Removes the last tokens. Throws DS_ARGUMENT if there are fewer.
DS_ENTRY void rollback_tokens(Addon& addon, Handle<MatcherRef> matcher, TokenCount count);
/// Returns true if the text so far is a whole text.
DS_ENTRY bool matcher_complete(Addon& addon, Handle<MatcherRef> matcher);
/// Returns true if only an end token may follow.
DS_ENTRY bool matcher_done(Addon& addon, Handle<MatcherRef> matcher);
/// Returns the whole characters that follow in every continuation.
DS_ENTRY std::string forced_text(Addon& addon, Handle<MatcherRef> matcher);

/// Fills the mask of a matcher on the calling thread. Throws DS_ARGUMENT for a mask of another
/// size, and DS_LIMIT.
DS_ENTRY void fill_mask(Addon& addon, Handle<MatcherRef> matcher, Bytes words);

/// Fills the masks of matchers on the threads of the pool: bit t % 32 of word t / 32 is 1 if token
/// t may follow. `places` has pairs: a matcher, and the byte offset of its mask in `target`, which
/// is host memory. Rejects with DS_LIMIT.
DS_ENTRY Promise<void> fill_masks(Addon& addon, Doubles places, Handle<Buffer> target);

}  // namespace ds::addon
