// By which rules of ours texts become tokens: what is kept of tokens names them.

/**
 * Raise it with every change after which some text has other ids, or a conversation another text:
 * in computable.ts, in what backend.ts makes of the libraries, in the libraries' versions. Tokens
 * that caches hold are then made anew. `test/text/tokenizer-rules.test.ts` fails where a cut has
 * changed and this has not.
 */
export const TOKENIZER_RULES = 5;
