// The page: a conversation, its settings, and answers as they come. Texts of models become text
// nodes only, never markup.
import { chat, key, models, ServerError } from './client.js';
import {
  bodyOf,
  jsonOf,
  newTalk,
  readTalks,
  removeTalk,
  SAMPLING,
  saveTalk,
  titleOf,
} from './talks.js';

/** Milliseconds until the page asks again for models that are not there yet. */
const RETRY = 1500;
/** Milliseconds between two drawings of a running answer. */
const FRAME = 50;
const FIELDS = ['system', 'tools', 'schema'];

const byId = (id) => document.getElementById(id);
const isEnd = (box) => box.scrollHeight - box.scrollTop - box.clientHeight < 40;

let talks = readTalks();
let talk = talks[0] ?? newTalk();
/** Ends the running answer; null without one. */
let running = null;
let retry = null;

/** Returns a new element; children are elements and texts. */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) made.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

const button = (text, onclick, attributes = {}) =>
  element('button', { type: 'button', onclick, ...attributes }, text);

function fail(error) {
  byId('failure').textContent = error ? error.message : '';
}

function connection(kind, text) {
  const place = byId('connection');
  place.textContent = text;
  place.className = kind;
}

// Models and the key.

async function loadModels() {
  clearTimeout(retry);
  try {
    drawModels(await models());
    connection('connected', 'Ready');
  } catch (error) {
    if (error.status === 401) return askKey(error);
    connection('lost', error instanceof ServerError ? error.message : 'No server answers.');
    retry = setTimeout(loadModels, RETRY);
  }
}

function drawModels(found) {
  const place = byId('model');
  const wanted = place.value || talk.model;
  place.replaceChildren(
    ...found.map(({ id }) => element('option', { value: id, selected: id === wanted }, id)),
  );
}

function askKey(error) {
  connection('lost', 'This server needs a key.');
  byId('change-key').hidden = false;
  byId('key-error').textContent = key.get() ? error.message : '';
  byId('key').value = '';
  if (!byId('key-dialog').open) byId('key-dialog').showModal();
}

byId('key-form').addEventListener('submit', () => {
  key.set(byId('key').value.trim());
  byId('key').value = '';
  loadModels();
});
byId('change-key').addEventListener('click', () => byId('key-dialog').showModal());

// Conversations.

function drawTalks() {
  const all = talks.some(({ id }) => id === talk.id) ? talks : [talk, ...talks];
  byId('talks').replaceChildren(
    ...all.map((one) => {
      const title = titleOf(one);
      const current = String(one.id === talk.id);
      const open = button(title, () => select(one), { class: 'title', 'aria-current': current });
      return element(
        'li',
        {},
        open,
        button('×', () => drop(one), { 'aria-label': `Delete ${title}` }),
      );
    }),
  );
}

function select(one) {
  running?.abort();
  talk = one;
  fail(null);
  byId('rate').textContent = '';
  drawTalks();
  drawSettings();
  drawMessages();
}

function drop(one) {
  removeTalk(one);
  talks = talks.filter(({ id }) => id !== one.id);
  if (one.id === talk.id) select(talks[0] ?? newTalk());
  else drawTalks();
}

/** Keeps a conversation; without room, the page says so and continues. */
function keep(one) {
  if (!talks.some(({ id }) => id === one.id)) talks = [one, ...talks];
  try {
    saveTalk(one);
  } catch {
    fail(new Error('The browser has no room for this conversation: delete an older one.'));
  }
  drawTalks();
}

byId('new').addEventListener('click', () => {
  select(newTalk(talk.settings));
  byId('prompt').focus();
});

addEventListener('storage', () => {
  const others = readTalks().filter(({ id }) => id !== talk.id);
  talks = talks.some(({ id }) => id === talk.id) ? [talk, ...others] : others;
  drawTalks();
});

// Settings.

function drawSettings() {
  for (const name of FIELDS) byId(name).value = talk.settings[name] ?? '';
  for (const name of Object.keys(SAMPLING)) byId(name).value = talk.settings[name] ?? '';
  for (const name of ['tools', 'schema']) checkJson(name);
}

function checkJson(name) {
  const place = byId(`${name}-error`);
  place.textContent = '';
  try {
    jsonOf(byId(name).value);
  } catch (error) {
    place.textContent = `expected JSON, got ${error.message}`;
  }
}

function makeSettings() {
  for (const [name, { label, ...limits }] of Object.entries(SAMPLING)) {
    const input = element('input', { id: name, type: 'number', placeholder: 'default', ...limits });
    input.addEventListener('input', () => {
      talk.settings[name] = input.value === '' ? undefined : input.valueAsNumber;
    });
    byId('sampling').append(element('label', { for: name }, label, input));
  }
  for (const name of FIELDS) {
    byId(name).addEventListener('input', ({ target }) => {
      talk.settings[name] = target.value;
      if (name !== 'system') checkJson(name);
    });
  }
  byId('settings').addEventListener('change', () => {
    if (talk.messages.length > 0) keep(talk);
  });
}

// Messages.

const rounded = (value) => (value < 10 ? value.toFixed(2) : value.toFixed(1));

function aboutText({ about }) {
  if (!about) return '';
  const { tokens, seconds, first, reason } = about;
  const rate = tokens > 1 && seconds > 0 ? `, ${rounded((tokens - 1) / seconds)} tokens/s` : '';
  const wait = first === null ? '' : `, first token after ${rounded(first)} s`;
  const ends = { length: ', cut at the most tokens', abort: ', stopped', error: ', failed' };
  return `${tokens} tokens${rate}${wait}${ends[reason] ?? ''}`;
}

function callPart(call, isOpen) {
  const { name, arguments: own } = call.function;
  const label = `Result of ${name}`;
  return element(
    'div',
    { class: 'call' },
    element('p', { class: 'role' }, `calls ${name}`),
    element('pre', {}, own),
    isOpen
      ? element('textarea', {
          rows: 2,
          'data-call': call.id,
          'aria-label': label,
          placeholder: label,
        })
      : null,
  );
}

function drawMessage(message, at) {
  const { role, content, reasoning_content: thought, tool_calls: calls = [] } = message;
  const isLast = at === talk.messages.length - 1;
  const isOpen = isLast && !running && calls.length > 0;
  const about = aboutText(message);
  const row = element('div', { class: 'row' });
  if (about) row.append(element('span', { class: 'about' }, about));
  if (!running && role === 'user') row.append(button('Edit', () => edit(at)));
  if (!running && isLast)
    row.append(button('Again', () => again(role === 'assistant' ? at : at + 1)));
  if (content) row.append(button('Copy', () => navigator.clipboard?.writeText(content)));
  if (isOpen) row.append(button('Send results', () => sendResults(calls)));
  return element(
    'article',
    { class: `message ${role}` },
    element('p', { class: 'role' }, role),
    thought
      ? element(
          'details',
          { class: 'reasoning', open: content ? false : '' },
          element('summary', {}, 'Reasoning'),
          element('div', { class: 'text' }, thought),
        )
      : null,
    element('div', { class: 'text' }, content ?? ''),
    ...calls.map((call) => callPart(call, isOpen)),
    row,
  );
}

function drawMessages() {
  const box = byId('messages');
  const atEnd = isEnd(box);
  box.replaceChildren(...talk.messages.map(drawMessage));
  if (atEnd) box.scrollTop = box.scrollHeight;
  box.setAttribute('aria-busy', running !== null);
  byId('stop').disabled = running === null;
  byId('send').disabled = running !== null;
}

function drawLast() {
  const box = byId('messages');
  const atEnd = isEnd(box);
  box.lastElementChild?.replaceWith(drawMessage(talk.messages.at(-1), talk.messages.length - 1));
  if (atEnd) box.scrollTop = box.scrollHeight;
}

function edit(at) {
  byId('prompt').value = talk.messages[at].content;
  talk.messages = talk.messages.slice(0, at);
  keep(talk);
  drawMessages();
  byId('prompt').focus();
}

/** Answers the first `count` messages once more. */
function again(count) {
  talk.messages = talk.messages.slice(0, count);
  answer();
}

function sendResults(calls) {
  for (const { id } of calls) {
    const content = document.querySelector(`[data-call="${CSS.escape(id)}"]`).value;
    talk.messages.push({ role: 'tool', tool_call_id: id, content });
  }
  answer();
}

// Answers.

function take(message, { delta, token_ids: ids, finish_reason: reason }) {
  if (delta.content) message.content += delta.content;
  if (delta.reasoning_content) {
    message.reasoning_content = (message.reasoning_content ?? '') + delta.reasoning_content;
  }
  for (const { index, id, function: part } of delta.tool_calls ?? []) {
    message.tool_calls ??= [];
    if (id) message.tool_calls[index] = { id, type: 'function', function: { ...part } };
    else message.tool_calls[index].function.arguments += part.arguments;
  }
  message.about.tokens += ids?.length ?? 0;
  if (reason) message.about.reason = reason;
}

/** Receives an answer, and draws it at most once a frame. */
async function receive(message, body, signal) {
  const began = performance.now();
  let first = null;
  let drawn = began;
  for await (const { choices, usage } of chat(body, signal)) {
    const now = performance.now();
    if (usage) message.about.tokens = usage.completion_tokens;
    if (!choices[0]) continue;
    take(message, choices[0]);
    if (message.about.tokens === 0) continue;
    first ??= now;
    message.about.first = (first - began) / 1000;
    message.about.seconds = (now - first) / 1000;
    if (now - drawn < FRAME || talk.messages.at(-1) !== message) continue;
    drawn = now;
    drawLast();
    byId('rate').textContent = aboutText(message);
  }
}

/** Asks for the answer to the conversation as it is. */
async function answer() {
  const own = talk;
  fail(null);
  let body;
  try {
    body = bodyOf(own, byId('model').value);
  } catch (error) {
    byId('settings').open = true;
    drawMessages();
    return fail(new Error(`Tools and schema: expected JSON, got ${error.message}`));
  }
  own.model = body.model;
  const message = { role: 'assistant', content: '' };
  message.about = { tokens: 0, seconds: 0, first: null, reason: null };
  own.messages.push(message);
  const control = new AbortController();
  running = control;
  keep(own);
  drawMessages();
  try {
    await receive(message, body, control.signal);
  } catch (error) {
    message.about.reason = control.signal.aborted ? 'abort' : 'error';
    if (!control.signal.aborted) explain(error);
    if (!message.content && !message.tool_calls && !message.reasoning_content) own.messages.pop();
  } finally {
    if (running === control) running = null;
  }
  keep(own);
  if (own !== talk) return;
  byId('rate').textContent = own.messages.includes(message) ? aboutText(message) : '';
  drawMessages();
}

function explain(error) {
  if (error.status === 401) askKey(error);
  if (error instanceof ServerError) return fail(error);
  fail(error instanceof TypeError ? new Error('No server answers. Is it still running?') : error);
  loadModels();
}

byId('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  const content = byId('prompt').value;
  if (running || content.trim() === '') return;
  byId('prompt').value = '';
  talk.messages.push({ role: 'user', content });
  byId('messages').scrollTop = byId('messages').scrollHeight;
  answer();
});
byId('prompt').addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId('composer').requestSubmit();
});
byId('stop').addEventListener('click', () => running?.abort());
addEventListener('keydown', ({ key: name }) => {
  if (name === 'Escape') running?.abort();
});

makeSettings();
drawTalks();
drawSettings();
drawMessages();
loadModels();
