// Names of the hub in the functions and commands that take folders.
import { spawn } from 'node:child_process';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { hub, initInference, nn, peft, seed, text } from '../../lib/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { DS } from '../launch/jobs.js';
import { stir } from '../peft/models.js';
import { refusal } from '../support/refusal.js';
import { hubTest } from './hub-support.js';

const [MODEL, ADAPTER] = ['org/model', 'org/adapter'];
const test_ = hubTest();
let dir: string;
const filesOf = (folder: string): Record<string, Buffer> =>
  Object.fromEntries(readdirSync(folder).map((name) => [name, readFileSync(join(folder, name))]));

beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), 'by-name-'));
  seed(1);
  const sizes = { layers: 1, heads: 2, kvHeads: 1, channels: 32, hidden: 64, maxSeq: 64 };
  const model = new nn.models.Llama({ vocabSize: 1007, ...sizes, tied: true });
  await nn.saveWeights(model, join(dir, 'model'), { format: 'hf' });
  cpSync(join(packageRoot(), 'examples', 'tokenizer'), join(dir, 'model'), { recursive: true });
  peft.addLora(model, { r: 2, baseModelNameOrPath: MODEL });
  stir(model);
  await peft.saveAdapter(model, join(dir, 'adapter'));
});
afterAll(() => rmSync(dir, { recursive: true }));

beforeEach(() => {
  test_.server.add(MODEL, filesOf(join(dir, 'model')));
  test_.server.add(ADAPTER, filesOf(join(dir, 'adapter')));
  Object.assign(process.env, environment());
});

const environment = (): Record<string, string> => ({
  HF_ENDPOINT: test_.server.url,
  HF_HOME: test_.cache,
  HF_HUB_CACHE: test_.cache,
  HF_HUB_OFFLINE: '0',
  HF_HUB_DISABLE_PROGRESS_BARS: '1',
});

const ids = async (model: nn.models.CausalLM): Promise<readonly number[] | undefined> => {
  const engine = await initInference(model, { device: 'cpu', max_out_tokens: 16 });
  const [one] = await engine.generate({ prompt: [3, 1, 4], maxNewTokens: 4, temperature: 0 });
  await engine.destroy();
  return one?.tokens;
};

test('fromPretrained() downloads a model; the tokenizer and the engine then use the cache', async () => {
  const model = await nn.models.fromPretrained(MODEL);
  const localModel = await nn.models.fromPretrained(join(dir, 'model'));
  expect(await ids(model)).toEqual(await ids(localModel));
  const tokenizer = text.Tokenizer.fromPretrained(MODEL);
  expect(tokenizer.vocabSize).toBeGreaterThan(1000);
  const before = test_.server.fileRequests().length;
  const engine = await initInference(MODEL, { device: 'cpu', max_out_tokens: 16 });
  expect(test_.server.fileRequests()).toHaveLength(before);
  const [one] = await engine.generate({ prompt: 'Hi', maxNewTokens: 2 });
  expect(one?.text).toEqual(expect.any(String));
  await engine.destroy();
});

test('a model class loads a model by name and revision', async () => {
  const { commit } = test_.server.repositories.get(MODEL) as { commit: string };
  const model = await nn.models.Llama.fromPretrained(MODEL, { revision: commit, dtype: 'bf16' });
  expect(model.parameters()[0]?.dtype).toBe('bf16');
  const gone = await refusal(() => nn.models.fromPretrained(MODEL, { revision: 'v9' }));
  expect(gone).toMatchObject({ code: 'DS_HUB', op: MODEL });
});

test('an adapter loads by name, with its base model by name', async () => {
  const base = await nn.models.fromPretrained(MODEL);
  await peft.loadAdapter(base, ADAPTER);
  const engine = await initInference(ADAPTER, { device: 'cpu', max_out_tokens: 16 });
  const [one] = await engine.generate({ prompt: [3, 1, 4], maxNewTokens: 4, temperature: 0 });
  await engine.destroy();
  peft.merge(base);
  expect(one?.tokens).toEqual(await ids(peft.unload(base)));
  // A saved adapter names the model as Python does, not a folder of the cache.
  const model = await nn.models.fromPretrained(MODEL);
  const [config] = await peft.saveAdapter(peft.addLora(model, { r: 2 }), join(test_.cache, 'out'));
  expect(JSON.parse(readFileSync(config as string, 'utf8'))).toMatchObject({
    base_model_name_or_path: MODEL,
  });
});

test('synchronous functions read the cache, and name the call that fills it', async () => {
  for (const body of [
    () => text.Tokenizer.fromPretrained(MODEL),
    () => nn.models.fromConfig(MODEL),
  ]) {
    const error = await refusal(body);
    expect(error.code).toBe('DS_HUB');
    expect(error.message).toMatch(/got "org\/model".*await hub\.pull\("org\/model"\) first/);
  }
  expect(test_.server.received).toEqual([]);
  await hub.pull(MODEL, { files: 'config' });
  expect(nn.models.fromConfig(MODEL).vocabSize).toBe(1007);
});

test('an existing path wins, and a path is never sent to the hub', async () => {
  const at = process.cwd();
  const folder = join(test_.cache, 'work');
  mkdirSync(join(folder, 'org'), { recursive: true });
  symlinkSync(join(dir, 'model'), join(folder, MODEL));
  process.chdir(folder);
  try {
    const model = await nn.models.fromPretrained(MODEL);
    expect(model.vocabSize).toBe(1007);
    for (const path of ['./gone', '/gone/x', '../gone', 'a/b/c', 'gone/']) {
      expect(await refusal(() => nn.models.fromPretrained(path))).toMatchObject({
        code: 'DS_CHECKPOINT',
        got: 'nothing of this name',
      });
    }
    writeFileSync(join(folder, 'file'), '');
    expect(await refusal(() => nn.models.fromPretrained('file'))).toMatchObject({ got: 'a file' });
    const loadRevision = () => nn.models.fromPretrained(MODEL, { revision: 'main' });
    expect(await refusal(loadRevision)).toMatchObject({ code: 'DS_ARGUMENT' });
  } finally {
    process.chdir(at);
  }
  expect(test_.server.received).toEqual([]);
});

/** Runs a command. This process is the server meanwhile, so it must not block. */
function ds(...words: string[]): Promise<{ code: number; stdout: string; stderr: string }> {
  const args = [...DS, ...words];
  const env = { ...process.env, ...environment(), DS_NUM_THREADS: '1' };
  const child = spawn(process.execPath, args, { env, cwd: dir });
  child.stdin.on('error', () => {}); // The command may not read it.
  const out = { stdout: '', stderr: '' };
  for (const name of ['stdout', 'stderr'] as const) {
    child[name].on('data', (part: Buffer) => {
      out[name] += part;
    });
  }
  child.stdin.end('Hi\n');
  return new Promise((resolve) =>
    child.on('close', (code) => resolve({ code: code ?? 1, ...out })),
  );
}

test('ds pull, models and remove', async () => {
  const pulled = await ds('pull', MODEL);
  const { commit } = test_.server.repositories.get(MODEL) as { commit: string };
  const folder = join(test_.cache, 'models--org--model', 'snapshots', commit);
  expect(pulled).toEqual({ code: 0, stdout: `${folder}\n`, stderr: '' });
  const listed = await ds('models');
  const size = /\d+(\.\d+)? [kM]B/.source;
  expect(listed.stdout).toMatch(
    new RegExp(
      `^${MODEL}  ${size}  \\d{4}-\\d\\d-\\d\\d  ${commit.slice(0, 8)} \\(main\\), \\d files`,
    ),
  );
  const removed = await ds('models', 'remove', MODEL);
  expect(removed.stdout).toMatch(new RegExp(`^removed ${MODEL}: ${size} freed`));
  expect(existsSync(folder)).toBe(false);
  const again = await ds('models', 'remove', MODEL);
  expect([again.code, again.stderr]).toEqual([
    2,
    expect.stringMatching(/got no model "org\/model"/),
  ]);
  const wrong = await ds('pull', 'a/b/c');
  expect([wrong.code, wrong.stderr]).toEqual([2, expect.stringMatching(/the name of a model/)]);
});

test('ds chat and ds plan accept names; the plan downloads only the configuration', async () => {
  const planned = await ds('plan', '--model', MODEL, '--seq', '32');
  expect([planned.code, planned.stderr]).toEqual([0, '']);
  expect(test_.server.fileRequests().map(({ path }) => path.split('/').at(-1))).toEqual([
    'config.json',
  ]);
  const chat = await ds('chat', MODEL, '--device', 'cpu', '--max-tokens', '4');
  expect([chat.code, chat.stderr]).toEqual([0, '']);
});

test('ds train by name downloads once and fixes the commit for its ranks', async () => {
  const row = {
    messages: [
      { role: 'user', content: 'a' },
      { role: 'assistant', content: 'b' },
    ],
  };
  writeFileSync(join(dir, 'rows.jsonl'), Array(8).fill(JSON.stringify(row)).join('\n'));
  const line = `train --model ${MODEL} --data rows.jsonl --output out --max_steps 2 --max_length 64`;
  const common = '--dataset_num_proc 0 --device cpu --num_procs 2 --per_device_train_batch_size 2';
  const { code, stdout, stderr } = await ds(...`${line} ${common} --lora`.split(' '));
  expect([code, stderr.replace(/\[.*|\s/g, '')]).toEqual([0, expect.any(String)]);
  expect(stdout).toContain(`trains Llama of ${MODEL}`);
  expect(test_.server.fileRequests('model.safetensors')).toHaveLength(1);
  const asked = test_.server.received.filter(({ path }) => path.includes('/revision/'));
  expect(asked).toHaveLength(1);
  const config = readFileSync(join(dir, 'out', 'adapter_config.json'), 'utf8');
  expect(JSON.parse(config)).toMatchObject({ base_model_name_or_path: MODEL });
});
