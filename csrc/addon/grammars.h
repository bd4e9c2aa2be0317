// Grammars for JavaScript: vocabularies, compiled grammars, and a matcher per sequence.
#pragma once

#include <string>

#include "../grammar/matcher.h"
#include "entry.h"

namespace ds::addon {

using VocabularyRef = const grammar::Vocabulary;
using GrammarRef = grammar::Grammar;
using MatcherRef = grammar::Matcher;

/// Resolves with the handle of a vocabulary. Token i has the bytes from offsets[i] to offsets[i +
/// 1]. Tokens without bytes are never allowed. Rejects with DS_ARGUMENT.
DS_ENTRY Promise<double> create_vocabulary(Addon& addon, Bytes bytes, Integers offsets);
DS_ENTRY void release_vocabulary(Addon& addon, Handle<VocabularyRef> vocabulary);

/// Compiles a grammar from its description (csrc/grammar/program.h). Resolves with its handle.
/// Rejects with DS_ARGUMENT if no text matches, and with DS_LIMIT.
DS_ENTRY Promise<double> create_grammar(Addon& addon, Handle<VocabularyRef> vocabulary,
                                        Integers words);
DS_ENTRY void release_grammar(Addon& addon, Handle<GrammarRef> grammar);
/// Returns the size in bytes of the states and masks that the grammar caches.
DS_ENTRY double grammar_bytes(Addon& addon, Handle<GrammarRef> grammar);

/// Returns the handle of a new matcher. The tokens `ends` are allowed after a complete text.
DS_ENTRY double create_matcher(Addon& addon, Handle<GrammarRef> grammar, Integers ends);
DS_ENTRY void release_matcher(Addon& addon, Handle<MatcherRef> matcher);
/// Appends a token. Returns false, without effect, if the grammar does not allow it. Throws
/// DS_LIMIT.
DS_ENTRY bool accept_token(Addon& addon, Handle<MatcherRef> matcher, TokenNumber token);
/// Removes the last `count` tokens. Throws DS_ARGUMENT if there are fewer.
DS_ENTRY void rollback_tokens(Addon& addon, Handle<MatcherRef> matcher, TokenCount count);
/// Returns true if the grammar matches the text so far.
DS_ENTRY bool matcher_complete(Addon& addon, Handle<MatcherRef> matcher);
/// Returns true if only end tokens are allowed.
DS_ENTRY bool matcher_done(Addon& addon, Handle<MatcherRef> matcher);
/// Returns the complete characters that every continuation begins with.
DS_ENTRY std::string forced_text(Addon& addon, Handle<MatcherRef> matcher);

/// Fills the matcher's mask on the calling thread. Throws DS_LIMIT, or DS_ARGUMENT for a mask of
/// another size.
DS_ENTRY void fill_mask(Addon& addon, Handle<MatcherRef> matcher, Bytes words);

/// Fills the masks of several matchers on the thread pool. Bit t % 32 of word t / 32 is 1 if token
/// t is allowed. `places` has pairs: a matcher, and the byte offset of its mask in the host memory
/// `target`. Rejects with DS_LIMIT.
DS_ENTRY Promise<void> fill_masks(Addon& addon, Doubles places, Handle<Buffer> target);

}  // namespace ds::addon
