// Tests the reader of prompts: texts that it encodes, questions to a thread, and refusals.
import { DsError } from '../../lib/errors.js';
import type { LostAnswerError } from '../../lib/runtime/thread-pool.js';
import {
  type PromptAnswer,
  type PromptQuestion,
  PromptReader,
} from '../../lib/serve/prompt-reader.js';
import type { Tokenizer } from '../../lib/text/index.js';

const queueClient = { client: 'a', connection: {}, signal: new AbortController().signal };

/** A tokenizer without patterns: a token for each character. */
function reader(max: number, fewest = 1): PromptReader {
  const plain = {
    hasPatterns: false,
    folder: '/nowhere',
    templateText: () => undefined,
    fewestTokens: (text: string) => Math.floor(text.length * fewest),
    encode: (text: string) => Int32Array.from(text, (char) => char.charCodeAt(0)),
  };
  const options = { threads: 1, max, characters: 100, seconds: 1 };
  return new PromptReader(plain as unknown as Tokenizer, options as never);
}

test('a short text is read without a thread, up to the last token that fits', async () => {
  const prompts = reader(3);
  expect(await prompts.encode('abc', queueClient as never)).toEqual([97, 98, 99]);
  await expect(prompts.encode('abcd', queueClient as never)).rejects.toMatchObject({
    status: 400,
    message: expect.stringMatching(/at least 4/),
  });
  await prompts.close();
});

test('a text of an input has its limit of tokens here, a prompt together with its answer', async () => {
  const prompts = reader(3, 0.5);
  expect(await prompts.encode('abc', queueClient as never, 'input')).toHaveLength(3);
  await expect(prompts.encode('abcd', queueClient as never, 'input')).rejects.toMatchObject({
    param: 'input',
    message: expect.stringMatching(/at most 3 tokens, got 4/),
  });
  expect(await prompts.encode('abcd', queueClient as never)).toHaveLength(4);
  await prompts.close();
});

describe('prompts for a thread', () => {
  /** A reader with the thread of one `answer`, and its questions. */
  function readerAnswering(answer: PromptAnswer | Error, more: object = {}) {
    const questions: PromptQuestion[] = [];
    const encoded: string[] = [];
    const plain = {
      hasPatterns: false,
      folder: '/models/one',
      fewestTokens: () => 1,
      templateText: (name: string) => (name === 'default' ? '{{ messages }}' : null),
      encode: (text: string) => {
        encoded.push(text);
        return Int32Array.of(1);
      },
      ...more,
    };
    const options = { threads: 1, max: 3, characters: 2000, seconds: 1 };
    const prompts = new PromptReader(plain as unknown as Tokenizer, options);
    const ask = (question: PromptQuestion) => {
      questions.push(question);
      return answer instanceof Error ? Promise.reject(answer) : Promise.resolve(answer);
    };
    Object.assign(prompts, { pool: { ask } });
    return { prompts, questions, encoded };
  }
  const options = { addGenerationPrompt: true, continueFinalMessage: false, variables: {} };
  const untyped = (messages: object[]) => messages as never;
  const two = { tokens: Int32Array.of(4, 5) };

  test('are those of more than 1,024 characters, and of tokenizers with patterns', async () => {
    const { prompts, questions, encoded } = readerAnswering(two);
    expect(await prompts.encode('a'.repeat(1024), queueClient as never)).toEqual([1]);
    expect([encoded.length, questions.length]).toEqual([1, 0]);
    expect(await prompts.encode('a'.repeat(1025), queueClient as never)).toEqual([4, 5]);
    expect([encoded.length, questions.length]).toEqual([1, 1]);
    const patterns = readerAnswering(two, { hasPatterns: true });
    expect(await patterns.prompts.encode('a', queueClient as never)).toEqual([4, 5]);
    expect([patterns.encoded, patterns.questions]).toEqual([[], [{ text: 'a' }]]);
  });

  test('are counted, decoded and written by the template', async () => {
    const { prompts, questions } = readerAnswering(two);
    expect(await prompts.encodeAny('a', false, queueClient as never)).toEqual([4, 5]);
    expect(await prompts.decode([7, 8], queueClient as never)).toBe('');
    const messages = untyped([{ role: 'developer', content: 'a', reasoning_content: 'b' }]);
    expect(await prompts.encodeChat(messages, options, queueClient as never)).toEqual([4, 5]);
    expect(questions).toEqual([
      { text: 'a', addSpecialTokens: false },
      { decode: [7, 8] },
      { messages: [{ role: 'system', content: 'a', reasoning_content: 'b' }], options },
    ]);
    expect(await readerAnswering({ text: 'x' }).prompts.decode([7], queueClient as never)).toBe(
      'x',
    );
  });

  test.each<[template: string, message: object]>([
    ['developer', { role: 'developer' }],
    ['{{ m.thinking }}', { role: 'system', thinking: 'b' }],
    ['{{ m.thinking }} reasoning_content', { role: 'system' }],
    ['{{ m.rethinking }}', { role: 'system' }],
  ])('with the template %s, a message is %j', async (template, read) => {
    const { prompts, questions } = readerAnswering(two, { templateText: () => template });
    const input = { role: 'developer', content: 'a', reasoning_content: 'b' };
    await prompts.encodeChat(
      untyped([input, { role: 'user', content: 'c' }]),
      options,
      queueClient as never,
    );
    expect(questions).toEqual([
      {
        messages: [
          { ...input, ...read },
          { role: 'user', content: 'c' },
        ],
        options,
      },
    ]);
  });

  test.each<
    [template: string | null, tools: string | null, own: string | undefined, knows: boolean]
  >([
    ['tools', null, undefined, true],
    ['messages', 'tools', undefined, true],
    ['tools', 'messages', undefined, false],
    ['tools', 'tools', 'messages', false],
    ['messages', 'messages', 'tools', true],
    [null, null, undefined, false],
  ])('templates %j and %j, own %j: tools are read: %j', (usual, tools, chatTemplate, knows) => {
    const plain = {
      hasPatterns: false,
      folder: '/models/one',
      templateText: (name: string) => (name === 'tool_use' ? tools : usual),
    };
    const options = { threads: 1, max: 3, characters: 9, seconds: 1, chatTemplate };
    expect(new PromptReader(plain as never, options).knowsTools).toBe(knows);
  });

  test.each<[answer: PromptAnswer, param: string, words: RegExp]>([
    [{ minTokens: 9 }, 'messages', /at most 3 tokens, got at least 9/],
    [{ characters: 2001 }, 'messages', /at most 2000 characters, got 2001/],
    [{ characters: 2000 }, 'messages', /at most 3 tokens, got at least 3/],
    [{ lost: 1 }, 'messages[1].role', /got "critic" with content that it leaves out/],
    [{ lostCalls: 1 }, 'messages[1].tool_calls', /does not write calls; send them as texts/],
  ])('are refused with the answer %j', async (answer, param, words) => {
    const { prompts } = readerAnswering(answer);
    const messages = untyped([
      { role: 'user', content: 'a' },
      { role: 'critic', content: 'b' },
    ]);
    await expect(prompts.encodeChat(messages, options, queueClient as never)).rejects.toMatchObject(
      {
        status: 400,
        param,
        message: expect.stringMatching(words),
      },
    );
  });

  test('count reasoning and calls as characters', async () => {
    const calls = [{ function: { name: 'f' } }];
    const length = JSON.stringify(calls).length;
    const message = (content: unknown, count: number) => ({
      role: 'assistant',
      content,
      reasoning_content: 'r'.repeat(count),
      tool_calls: calls,
    });
    const chat = (item: object) =>
      readerAnswering(two).prompts.encodeChat(untyped([item]), options, queueClient as never);
    await chat(message('a'.repeat(10), 1990 - length));
    await chat(message(null, 2000 - length));
    for (const one of [message('a'.repeat(10), 1991 - length), { content: 'a'.repeat(2001) }]) {
      await expect(chat(one)).rejects.toMatchObject({ param: 'messages' });
    }
    const { prompts } = readerAnswering(two);
    await expect(
      prompts.encodeAny('a'.repeat(2001), true, queueClient as never),
    ).rejects.toMatchObject({
      param: 'prompt',
      code: 'context_length_exceeded',
    });
    await expect(prompts.decode(Array(2001).fill(1), queueClient as never)).rejects.toMatchObject({
      param: 'tokens',
    });
  });

  test('keep the folder of the tokenizer out of errors', async () => {
    const options = { op: '/models/one, tokens', expected: 'a /models/one', got: '/models/one' };
    const error = new DsError({ code: 'DS_DATA', ...options, hint: 'See /models/one.' });
    const { prompts } = readerAnswering(error, { hasPatterns: true });
    await expect(prompts.encode('a', queueClient as never)).rejects.toMatchObject({
      code: 'DS_DATA',
      op: 'tokens',
      expected: 'a the tokenizer',
      got: 'the tokenizer',
      hint: 'See the tokenizer.',
    });
    const other = new TypeError('/models/one');
    const plain = readerAnswering(other, { hasPatterns: true }).prompts;
    await expect(plain.encode('a', queueClient as never)).rejects.toBe(other);
  });

  test('that ends its thread is the request, or a failure inside', () => {
    const { failure } = readerAnswering(two).prompts as unknown as { failure: LostAnswerError };
    expect(failure('more', true)).toMatchObject({
      code: 'DS_LIMIT',
      expected: 'at most 1 s and 2048 MiB',
      got: 'more',
    });
    expect(failure('exit 1', false)).toMatchObject({ code: 'DS_INTERNAL', got: 'exit 1' });
  });
});
