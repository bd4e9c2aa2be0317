// Tests the items and stored responses of /v1/responses without a server.
import { ApiError } from '../../lib/serve/api-error.js';
import { itemsToMessages, readItems } from '../../lib/serve/responses/response-items.js';
import { ResponseStore } from '../../lib/serve/responses/response-store.js';
import type { JsonObject } from '../../types/json.js';

/** Field and message of the error that `body` throws. */
function refusal(body: () => unknown): { status: number; param: string | null; message: string } {
  try {
    body();
  } catch (error) {
    if (error instanceof ApiError) return error;
    throw error;
  }
  throw new Error('nothing was refused');
}

describe('items', () => {
  const none = () => null;
  const read = (items: object[], offset = 0) => itemsToMessages(items as JsonObject[], offset);
  const call = (id: string, more: object = {}) => ({
    type: 'function_call',
    call_id: id,
    name: 'f',
    arguments: '{}',
    ...more,
  });
  const toolCall = (id: string) => ({
    id,
    type: 'function',
    function: { name: 'f', arguments: '{}' },
  });

  test('are a text, a list, or nothing', () => {
    expect(readItems(undefined, none)).toEqual([]);
    expect(readItems('a', none)).toEqual([{ type: 'message', role: 'user', content: 'a' }]);
    expect(readItems([{ role: 'user' }], none)).toEqual([{ role: 'user' }]);
    expect(readItems(Array(8192).fill({}), none)).toHaveLength(8192);
    expect(refusal(() => readItems(Array(8193).fill({}), none))).toMatchObject({
      param: 'input',
      message: expect.stringContaining('at most 8192, got 8193'),
    });
    expect(refusal(() => readItems({}, none)).param).toBe('input');
    expect(refusal(() => readItems([{}, 3], none)).param).toBe('input[1]');
  });

  test('that are references are looked up by their id', () => {
    const found = { id: 'msg_1', role: 'assistant' };
    const refer = (id: string) => (id === 'msg_1' ? found : null);
    const items = [{ type: 'item_reference', id: 'msg_1' }];
    expect(readItems(items, refer)[0]).toBe(found);
    for (const id of ['msg_2', 3]) {
      const error = refusal(() => readItems([{ type: 'item_reference', id }], refer));
      expect(error).toMatchObject({ status: 404, param: 'input[0].id', code: 'item_not_found' });
    }
  });

  test('of one turn of the assistant are one message', () => {
    const thought = { type: 'reasoning', content: [{ text: 'a' }, { text: 'b' }] };
    expect(read([thought, call('1'), call('2')])).toEqual([
      {
        role: 'assistant',
        content: null,
        reasoning_content: 'a\nb',
        tool_calls: [toolCall('1'), toolCall('2')],
      },
    ]);
    expect(read([thought, thought])[0]?.reasoning_content).toBe('a\nba\nb');
    const text = { role: 'assistant', content: 'x' };
    expect(read([text, call('1')])).toEqual([
      { role: 'assistant', content: 'x', tool_calls: [toolCall('1')] },
    ]);
    // A text after a text or a call begins another message, and so does reasoning.
    expect(read([text, text])).toHaveLength(2);
    expect(read([call('1'), text])).toHaveLength(2);
    expect(read([text, thought])).toHaveLength(2);
    expect(read([call('1'), thought])).toHaveLength(2);
    expect(read([{ type: 'function_call' }])[0]?.tool_calls).toEqual([
      { id: '', type: 'function', function: { name: '', arguments: '' } },
    ]);
  });

  test('of others end the turn of the assistant', () => {
    const result = { type: 'function_call_output', call_id: '1', output: 'r' };
    const user = { role: 'user', content: 'u' };
    expect(read([call('1'), result, call('2'), user, call('3')])).toEqual([
      { role: 'assistant', content: null, tool_calls: [toolCall('1')] },
      { role: 'tool', tool_call_id: '1', content: 'r' },
      { role: 'assistant', content: null, tool_calls: [toolCall('2')] },
      { role: 'user', content: 'u' },
      { role: 'assistant', content: null, tool_calls: [toolCall('3')] },
    ]);
    expect(read([{ content: 'a' }])).toEqual([{ role: null, content: 'a' }]);
  });

  test('have texts in parts of any of their types', () => {
    const types = ['input_text', 'output_text', 'text', 'summary_text', 'reasoning_text'];
    const content = [
      ...types.map((type) => ({ type, text: type })),
      { type: 'refusal', refusal: 'no' },
    ];
    expect(read([{ role: 'user', content }])[0]?.content).toBe([...types, 'no'].join('\n'));
  });

  test('have reasoning in their content, else in their summary', () => {
    const of = (item: object) => read([{ type: 'reasoning', ...item }])[0]?.reasoning_content;
    const summary = [{ text: 's' }, { text: 3 }, 'x', { text: 't' }];
    expect(of({ content: [], summary })).toBe('s\n\n\nt');
    expect(of({ content: [{ text: 'c' }], summary })).toBe('c');
    expect(of({ content: 'c' })).toBe('');
  });

  test.each<[item: object, param: string, words: RegExp]>([
    [{ type: 'computer_call' }, 'input[1].type', /no items of the type "computer_call"/],
    [{ type: 'x'.repeat(61) }, 'input[1].type', /type "x{60}"/],
    [{ type: 3 }, 'input[1].type', /type 3/],
    [{ role: 'user' }, 'input[1].content', /a string, or a list of parts/],
    [{ role: 'user', content: [3] }, 'input[1].content[0]', /got 3/],
    [{ role: 'user', content: [{ type: 'text' }] }, 'input[1].content[0]', /"input_text"/],
    [{ role: 'user', content: [{ type: 'refusal' }] }, 'input[1].content[0].type', /is not text/],
    [
      { role: 'user', content: [{ type: 'y'.repeat(61), text: 'a' }] },
      'input[1].content[0].type',
      /"y{60}" is not text/,
    ],
    [{ type: 'function_call_output', output: 'r' }, 'input[1].call_id', /a string/],
    [{ type: 'function_call_output', call_id: '1', output: 3 }, 'input[1].output', /got 3/],
  ])('%j is refused', (item, param, words) => {
    const user = { role: 'user', content: 'a' };
    // Items of earlier turns do not count.
    const error = refusal(() => read([user, user, user, item], 2));
    expect(error).toMatchObject({ status: 400, param });
    expect(error.message).toMatch(words);
  });
});

describe('stored responses', () => {
  const item = (id: string | number, text = '') => ({ id, text }) as unknown as JsonObject;
  const storedResponse = (
    id: string,
    previous: string | null = null,
    items = [item(`item_${id}`)],
  ) => ({
    id,
    owner: 'me',
    previous,
    items,
    response: { id },
  });
  const has = (store: ResponseStore, id: string) => {
    try {
      return store.find(id, 'me').id === id;
    } catch {
      return false;
    }
  };

  test('are found by their client only', () => {
    const store = new ResponseStore();
    store.add(storedResponse('a'));
    expect(store.find('a', 'me').response).toEqual({ id: 'a' });
    expect(store.item('item_a', 'me')).toEqual(item('item_a'));
    expect(store.item('item_a', 'you')).toBeNull();
    expect(store.item('item_b', 'me')).toBeNull();
    const calls = [
      () => store.find('a', 'you'),
      () => store.delete('a', 'you'),
      () => store.conversation('a', 'you'),
      () => store.find('b', 'me'),
    ];
    for (const one of calls) {
      expect(refusal(one)).toMatchObject({ status: 404, code: 'response_not_found' });
    }
    expect(has(store, 'a')).toBe(true);
  });

  test('are a conversation, oldest first', () => {
    const store = new ResponseStore();
    store.add(storedResponse('a'));
    store.add(storedResponse('b', 'a', [item('1'), item('2')]));
    store.add(storedResponse('c', 'b'));
    const ids = store.conversation('c', 'me').map(({ id }) => id);
    expect(ids).toEqual(['item_a', '1', '2', 'item_c']);
    store.delete('b', 'me');
    expect(refusal(() => store.conversation('c', 'me')).status).toBe(404);
  });

  test('are deleted in the order of their last use, with their items', () => {
    const store = new ResponseStore(2);
    store.add(storedResponse('a'));
    store.add(storedResponse('b'));
    store.find('a', 'me');
    store.add(storedResponse('c'));
    expect(['a', 'b', 'c'].map((id) => has(store, id))).toEqual([true, false, true]);
    expect(store.item('item_b', 'me')).toBeNull();
    const { items } = store as unknown as { items: ReadonlyMap<string, unknown> };
    expect([...items.keys()]).toEqual(['item_a', 'item_c']);
    store.delete('c', 'me');
    expect([has(store, 'c'), items.size]).toEqual([false, 1]);
  });

  test('are deleted without items that a later response shares', () => {
    const store = new ResponseStore();
    store.add(storedResponse('a', null, [item('same', 'old'), item(3), item('own')]));
    store.add(storedResponse('b', null, [item('same', 'new')]));
    store.delete('a', 'me');
    expect(store.item('same', 'me')).toEqual(item('same', 'new'));
    expect(store.item('own', 'me')).toBeNull();
    store.delete('b', 'me');
    expect(store.item('same', 'me')).toBeNull();
  });

  test('have a limit of total bytes', () => {
    const size = (id: string) => {
      const { items, response } = storedResponse(id);
      return Buffer.byteLength(JSON.stringify([items, response]));
    };
    const store = new ResponseStore(100, 2 * size('a'));
    for (const id of ['a', 'b']) store.add(storedResponse(id));
    expect(['a', 'b'].map((id) => has(store, id))).toEqual([true, true]);
    store.add(storedResponse('c'));
    expect(['a', 'b', 'c'].map((id) => has(store, id))).toEqual([false, true, true]);
    // Deleted bytes are free again.
    store.delete('b', 'me');
    store.add(storedResponse('d'));
    expect(['c', 'd'].map((id) => has(store, id))).toEqual([true, true]);
    // A response that never fits drops nothing.
    store.add(storedResponse('e', null, [item('x'.repeat(2 * size('a')))]));
    expect(['c', 'd', 'e'].map((id) => has(store, id))).toEqual([true, true, false]);
    const fullResponseStore = new ResponseStore(100, size('a'));
    fullResponseStore.add(storedResponse('a'));
    expect(has(fullResponseStore, 'a')).toBe(true);
  });

  test('are 4,096 and 64 MiB by default', () => {
    const { max, maxBytes } = new ResponseStore() as unknown as Record<string, number>;
    expect([max, maxBytes]).toEqual([4096, 2 ** 26]);
  });
});
