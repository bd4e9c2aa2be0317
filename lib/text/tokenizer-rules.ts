// The version of our tokenization rules, a part of each token cache's key.

/**
 * Raise it if some text gets other ids, or a conversation another text. Cached tokens are then
 * recomputed. `test/text/tokenizer-rules.test.ts` fails if splits changed and this number did not.
 */
export const TOKENIZER_RULES = 7;
