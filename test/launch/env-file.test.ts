// The .deepspeed_env of the current folder sets switches, and no variable that loads code.
// DS_FUZZ_SECONDS tries random variables for longer.
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { readFileVariables } from '../../lib/launch/exported-environment.js';
import { below } from '../support/random.js';
import { thrownBy } from '../support/refusal.js';

const dir = mkdtempSync(join(tmpdir(), 'ds-env-'));
afterAll(() => rmSync(dir, { recursive: true }));
const [home, cwd] = [join(dir, 'home'), join(dir, 'cwd')];
for (const folder of [home, cwd]) mkdirSync(folder);

/** The variables of a file in the current folder. */
function readVariables(text: string): Record<string, string> {
  writeFileSync(join(cwd, '.deepspeed_env'), text);
  return readFileVariables({}, [home, cwd]);
}

const HOSTILE = [
  ...['OPENSSL_CONF', 'OPENSSL_MODULES', 'OPENSSL_ENGINES', 'SSL_CERT_FILE', 'NODE_OPTIONS'],
  ...['NODE_PATH', 'NODE_EXTRA_CA_CERTS', 'LD_PRELOAD', 'LD_AUDIT', 'LD_LIBRARY_PATH', 'PATH'],
  ...['LD_DEBUG_OUTPUT', 'PYTHONSTARTUP', 'PYTHONPATH', 'PYTHONHOME', 'PERL5OPT', 'RUBYOPT'],
  ...['GIT_SSH_COMMAND', 'GIT_EXEC_PATH', 'GIT_CONFIG_GLOBAL', 'BASH_ENV', 'ENV', 'SHELLOPTS'],
  ...['DYLD_INSERT_LIBRARIES', 'GCONV_PATH', 'JAVA_TOOL_OPTIONS', 'CUDA_INJECTION64_PATH'],
  ...['DS_NATIVE_BINDING', 'DS_ENV_FILE', 'DS_JOB_SECRET', 'DS_API_KEY', 'UCX_MODULE_DIR'],
  ...['NCCL_CONF_FILE', 'NCCL_TOPO_FILE', 'FI_PROVIDER_PATH', 'HOME', 'SHELL', 'EDITOR', 'IFS'],
  ...['npm_config_node_options', 'http_proxy', 'TMPDIR', 'XDG_CONFIG_HOME', 'MLFLOW_TRACKING_URI'],
];

test.each(HOSTILE)('%s is refused only in the current folder', (name) => {
  const error = thrownBy(() => readVariables(`NCCL_DEBUG=INFO\n${name}=x`));
  expect([error.code, error.op]).toEqual(['DS_ARGUMENT', join(cwd, '.deepspeed_env:2')]);
  expect([error.got, error.hint]).toEqual([name, expect.stringContaining('export the variable')]);
  writeFileSync(join(home, '.deepspeed_env'), `${name}=x`);
  expect(readFileVariables({}, [home, dir])).toEqual({ [name]: 'x' });
  const named = { DS_ENV_FILE: join(cwd, '.deepspeed_env') };
  expect(readFileVariables(named, [home, cwd])).toEqual({ NCCL_DEBUG: 'INFO', [name]: 'x' });
  rmSync(join(home, '.deepspeed_env'));
});

test.each([
  'NCCL_NET_PLUGIN=./x.so',
  'NCCL_NET_PLUGIN=/x.so',
  'NCCL_DEBUG=$(id)',
  'UCX_TLS=a\\b',
  'CUDA_LAUNCH_BLOCKING=x.so',
  'CUDA_CACHE_PATH=cache',
  'OMP_NUM_THREADS=a',
])('%s is refused for its value', (line) => {
  expect(() => readVariables(line)).toThrow(/expected a number/);
});

test.each([
  ...['NCCL_IB_DISABLE=1', 'NCCL_IB_HCA==mlx5_0:1,mlx5_1:1', 'NCCL_SOCKET_IFNAME=^docker,lo'],
  ...[
    'NCCL_NET_PLUGIN=ofi',
    'UCX_TLS=tcp,cuda_copy',
    'UCX_NET_DEVICES=mlx5_0:1',
    'NCCL_DEBUG=INFO',
  ],
  ...[
    'GLOO_SOCKET_IFNAME=eth0',
    'MASTER_ADDR=fe80::1%eth0',
    'MASTER_PORT=29500',
    'DS_TIMEOUT=1800',
  ],
  ...['CUDA_VISIBLE_DEVICES=0,1', 'CUDA_VISIBLE_DEVICES=', 'CUDA_DEVICE_ORDER=PCI_BUS_ID'],
  ...['CUDA_LAUNCH_BLOCKING=1', 'OMP_NUM_THREADS=8', 'MKL_NUM_THREADS=8', 'NCCL_BUFFSIZE=4M'],
])('%s is accepted', (line) => {
  const [name, ...value] = line.split('=');
  expect(readVariables(line)).toEqual({ [name as string]: value.join('=') });
});

const pick = <T>(values: readonly T[]): T => values[below(values.length)] as T;
const PARTS = [
  ...[
    'LD',
    'NODE',
    'PYTHON',
    'GIT',
    'OPENSSL',
    'BASH',
    'PERL5',
    'DYLD',
    'CUDA',
    'NCCL',
    'UCX',
    'DS',
  ],
  ...[
    'PATH',
    'PRELOAD',
    'OPTIONS',
    'CONF',
    'FILE',
    'DIR',
    'ENV',
    'PLUGIN',
    'MODULE',
    'DEBUG',
    'LIB',
  ],
];
const VALUES = ['1', 'x', './x.so', '/tmp/x.so', 'x.so', '--require ./x.js', '$(id)', '`id`', '..'];
const SWITCH = /^(NCCL|TORCH_NCCL|UCX|GLOO|MV2|FI|DS|DEEPSPEED)_|^(MASTER|CUDA|OMP|TP|TOKENIZERS)_/;

test('a random variable is accepted if its prefix is listed and its value is no path', () => {
  let count = 0;
  let tried = 0;
  const seconds = Number(process.env.DS_FUZZ_SECONDS ?? 0);
  const until = Date.now() + 1000 * seconds;
  for (; tried < 3000 || Date.now() < until; ++tried) {
    const words = Array.from({ length: 1 + below(3) }, () => pick(PARTS));
    const name = below(4) ? words.join('_') : pick(HOSTILE).slice(below(3));
    const value = pick(VALUES);
    let found: Record<string, string>;
    try {
      found = readVariables(`${name}=${value}`);
    } catch {
      continue;
    }
    count++;
    // Numbers are harmless as switches of CUDA, whatever the name.
    const isNumber = value === '1' && name.startsWith('CUDA_');
    const isHostile = HOSTILE.includes(name) && !isNumber;
    expect([name, SWITCH.test(name) && !isHostile]).toEqual([name, true]);
    expect(found).toEqual({ [name]: expect.stringMatching(/^[\w.-]*$/) });
    if (value !== '1') expect(name).not.toMatch(/FILE|PATH|DIR|CONF|MODULE|LIB/);
  }
  if (seconds > 0) process.stdout.write(`${JSON.stringify({ tried, taken: count })}\n`);
  // About 65 of 3,000 are taken.
  expect(count).toBeGreaterThan(20);
});
