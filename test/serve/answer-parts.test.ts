// Tests the shapes of an answer's tokens and errors without a server.

import { DsError } from '../../lib/errors.js';
import { ChoiceParts } from '../../lib/serve/answer.js';
import {
  type AnswerPart,
  ChatFormat,
  spelledLength,
  TextFormat,
} from '../../lib/serve/answer-format.js';
import {
  ApiError,
  engineFailedError,
  noModelError,
  overloadedError,
  tooLongError,
} from '../../lib/serve/api-error.js';

describe('tokens of an answer', () => {
  /** "a", the two halves of an e with an accent, a face of four bytes, and a special token. */
  const bytes = [[97], [0xc3], [0xa9], [0xf0, 0x9f, 0x98, 0x80], [60]];
  const tokenizer = {
    hasToken: (token: number) => token < bytes.length,
    tokenBytes: (token: number) => Uint8Array.from(bytes[token] ?? []),
    specialIds: new Set([4]),
  } as never;
  const part = (more: Partial<AnswerPart> = {}): AnswerPart => ({
    text: '',
    tokens: null,
    logprobs: null,
    finishReason: null,
    offset: 0,
    ...more,
  });

  test('are spelled as text, as bytes, or by number, at their places', () => {
    const logprobs = [0, 1, 2, 3, 4, 9].map((token) => ({ token, logprob: -token, top: [] }));
    const format = new TextFormat(tokenizer);
    const { logprobs: rows, ...rest } = format.part(2, part({ logprobs, offset: 3 })) as {
      logprobs: Record<string, unknown>;
    };
    expect(rest).toEqual({ index: 2, text: '', finish_reason: null });
    expect(rows.tokens).toEqual(['a', 'bytes:\\xc3', 'bytes:\\xa9', '😀', '<', 'token_id:9']);
    expect(rows.text_offset).toEqual([3, 4, 5, 5, 7, 7]);
    expect(spelledLength({ tokenizer }, [0, 1, 2, 3, 4, 9])).toBe(4);
    expect(spelledLength({ tokenizer: null }, [9, 10])).toBe('token_id:9token_id:10'.length);
  });

  test('have finite logprobs, and of one text the likelier', () => {
    const top = [
      { token: 0, logprob: Number.NEGATIVE_INFINITY },
      { token: 0, logprob: -3 },
    ];
    const sampled = { token: 3, logprob: Number.NEGATIVE_INFINITY, top };
    const first = { token: 0, logprob: null, top: [] };
    const text = new TextFormat(tokenizer).part(0, part({ logprobs: [first, sampled] as never }));
    expect(text).toMatchObject({
      logprobs: { token_logprobs: [null, -9999], top_logprobs: [null, { a: -3, '😀': -9999 }] },
    });
    const chat = new ChatFormat(tokenizer).part(0, part({ logprobs: [sampled] as never }));
    expect(chat).toMatchObject({
      logprobs: {
        refusal: null,
        content: [
          {
            token: '😀',
            logprob: -9999,
            bytes: [0xf0, 0x9f, 0x98, 0x80],
            top_logprobs: [
              { token: 'a', logprob: -9999, bytes: [97] },
              { token: 'a', logprob: -3, bytes: [97] },
            ],
          },
        ],
      },
    });
    const bare = new ChatFormat(null).part(0, part({ logprobs: [sampled] as never }));
    expect(bare).toMatchObject({ logprobs: { content: [{ token: 'token_id:3', bytes: null }] } });
    expect(new TextFormat(null).part(0, part())).toMatchObject({ logprobs: null });
  });

  test('deltas of a chat have what is new, and the whole has everything', () => {
    const format = new ChatFormat(tokenizer);
    const delta = (more: Partial<AnswerPart>) =>
      (format.part(0, part(more)) as { delta: object }).delta;
    expect(delta({})).toEqual({});
    expect(delta({ text: 'a', reasoning: 'r' })).toEqual({
      content: 'a',
      reasoning_content: 'r',
      reasoning: 'r',
    });
    const begun = { index: 0, id: 'i', name: 'f', arguments: '{' };
    expect(delta({ calls: [begun, { index: 0, arguments: '}' }] })).toEqual({
      tool_calls: [
        { index: 0, id: 'i', type: 'function', function: { name: 'f', arguments: '{' } },
        { index: 0, function: { arguments: '}' } },
      ],
    });
    const all = new ChoiceParts();
    expect(all.merged).toMatchObject({ text: '', tokens: null, finishReason: null });
    all.add(part({ text: 'a', reasoning: 'r', calls: [begun], tokens: [1] }));
    all.add(
      part({ text: 'b', reasoning: 's', calls: [{ index: 0, arguments: '}' }], tokens: [2] }),
    );
    const other = { index: 1, id: 'j', name: 'g', arguments: '' };
    all.add(part({ calls: [other], tokens: [3], logprobs: [], finishReason: 'stop' }));
    expect(all.merged).toEqual({
      text: 'ab',
      reasoning: 'rs',
      tokens: [1, 2, 3],
      logprobs: [],
      finishReason: 'stop',
      calls: [{ ...begun, arguments: '{}' }, other],
      offset: 0,
    });
    expect(format.choice(1, all.merged)).toMatchObject({
      index: 1,
      finish_reason: 'stop',
      token_ids: [1, 2, 3],
      message: {
        role: 'assistant',
        content: 'ab',
        refusal: null,
        reasoning: 'rs',
        tool_calls: [
          { id: 'i', type: 'function' },
          { id: 'j', function: { name: 'g' } },
        ],
      },
    });
    const content = (more: Partial<AnswerPart>) =>
      (format.choice(0, part(more)) as { message: Record<string, unknown> }).message;
    expect(content({ calls: [other] }).content).toBeNull();
    expect(content({})).toEqual({ role: 'assistant', content: '', refusal: null });
    expect(new TextFormat(null).opening()).toBeNull();
    expect(format.opening(3)).toMatchObject({ index: 3, delta: { role: 'assistant' } });
  });
});

describe('errors', () => {
  test.each<[status: number, type: string]>([
    [400, 'invalid_request_error'],
    [401, 'authentication_error'],
    [403, 'permission_error'],
    [404, 'not_found_error'],
    [413, 'invalid_request_error'],
    [429, 'rate_limit_error'],
    [500, 'server_error'],
    [503, 'service_unavailable_error'],
  ])('%d is %s', (status, type) => {
    expect(new ApiError(status, 'm').body).toEqual({
      error: { message: 'm', type, param: null, code: null },
    });
  });

  test('of the request and of shortages keep their message; others go to the log', () => {
    const reported: unknown[] = [];
    const of = (thrown: unknown) => ApiError.from(thrown, (item) => reported.push(item));
    const localApiError = new ApiError(404, 'm', { param: 'p', code: 'c' });
    expect(of(localApiError)).toBe(localApiError);
    const ds = (code: string) =>
      new DsError({ code: code as never, op: 'o', expected: 'e', got: 'g' });
    for (const code of ['DS_ARGUMENT', 'DS_DATA', 'DS_INDEX', 'DS_LIMIT']) {
      expect(of(ds(code))).toMatchObject({ status: 400, code, message: ds(code).message });
    }
    expect(of(ds('DS_OUT_OF_MEMORY'))).toMatchObject({
      status: 503,
      code: 'DS_OUT_OF_MEMORY',
      headers: { 'retry-after': '1' },
    });
    expect(reported).toEqual([]);
    for (const thrown of [ds('DS_INTERNAL'), new Error('secret'), 'text']) {
      const error = of(thrown);
      expect(error).toMatchObject({ status: 500, code: null, param: null, headers: {} });
      expect(error.message).not.toContain('secret');
    }
    expect(reported).toHaveLength(3);
  });

  test('name models, a few of them, and the wanted one in short', () => {
    expect(noModelError('x', 'a')).toMatchObject({
      status: 404,
      param: 'model',
      code: 'model_not_found',
      message: expect.stringMatching(/^model: expected "a", got "x"\. .*--model-name/),
    });
    const names = (count: number) => Array.from({ length: count }, (_, i) => `${i}`);
    expect(noModelError('x', names(8)).message).not.toContain('/v1/models');
    const many = noModelError('y'.repeat(70), names(9), 'adapter');
    expect(many.param).toBe('adapter');
    expect(many.message).toContain('"7" or another one of /v1/models');
    expect(many.message).toContain(`"${'y'.repeat(60)}"`);
    expect(noModelError('x', []).message).toContain('a loaded adapter, of which there is none');
    expect(tooLongError('prompt', '5', 4)).toMatchObject({ param: 'prompt', status: 400 });
    expect(overloadedError('m')).toMatchObject({ status: 503, code: null });
    expect(engineFailedError(new Error('gone'))).toMatchObject({
      status: 503,
      code: 'engine_failed',
      message: expect.stringContaining('gone'),
    });
  });
});
