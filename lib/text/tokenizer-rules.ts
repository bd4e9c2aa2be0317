// Version of the tokenization rules, which is part of each token cache's key.

/**
 * Raise it if any text gets other ids, or any conversation another text. Cached tokens are then
 * recomputed. `test/text/tokenizer-rules.test.ts` fails if results changed and this number did not.
 */
export const TOKENIZER_RULES = 7;
