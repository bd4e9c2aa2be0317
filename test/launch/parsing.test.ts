// The launcher's parsers and rules, as tables: hostfiles, filters, words, variables, CPU lists,
// shares.
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

import { splitCores } from '../../lib/launch/core-binding.js';
import {
  parseVariables,
  readFileVariables,
  selectForwarded,
} from '../../lib/launch/exported-environment.js';
import { excludeSlots, includeSlots } from '../../lib/launch/filters.js';
import { parseHostfile, readHostfile } from '../../lib/launch/hostfile.js';
import { takeLaunchOptions } from '../../lib/launch/launch-options.js';
import { listVisibleGpus } from '../../lib/launch/local-gpus.js';
import { formatRanges, parseCpuList } from '../../lib/launch/number-ranges.js';
import { quote, splitWords } from '../../lib/launch/shell-words.js';
import { type Core, listAllowedCpus, listCores } from '../../lib/launch/topology.js';
import { gpuNumaNode } from '../../lib/runtime/gpu-location.js';
import { expandNodeList, rankFromEnvironment } from '../../lib/runtime/job-environment.js';

let dir: string;
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-launch-'));
});
afterAll(() => rmSync(dir, { recursive: true }));

function write(path: string, text: string): void {
  mkdirSync(dirname(join(dir, path)), { recursive: true });
  writeFileSync(join(dir, path), text);
}

describe('hostfiles', () => {
  test('hosts with slots; comments, blank lines and CRLF are skipped', () => {
    const text = '# cluster\r\n\r\nnode-1.example.org slots=2 # fast\n  10.0.0.7\tslots = 1\n';
    expect(parseHostfile(text, 'h')).toEqual([
      { host: 'node-1.example.org', slots: ['0', '1'] },
      { host: '10.0.0.7', slots: ['0'] },
    ]);
  });

  test.each([
    ['a slots=2\nb\n', 'h:2: expected "host slots=N", N from 1 to 4096, got "b".'],
    ['a slots=two', 'h:1: expected "host slots=N"'],
    ['a slots=0', 'h:1: expected "host slots=N"'],
    ['a slots=99999999999', 'h:1: expected "host slots=N"'],
    ['a slots=2 max=3', 'h:1: expected "host slots=N"'],
    ['-oProxyCommand=x slots=2', 'h:1: expected "host slots=N"'],
    ['$(touch_x) slots=2', 'h:1: expected "host slots=N"'],
    ['a slots=2\n\na slots=1', 'h:3: expected every host once, got a again (first in line 1).'],
    ['# nothing\n', 'h: expected at least one line "host slots=N", got none.'],
    ['', 'h: expected at least one line'],
  ])('%j is refused', (text, message) => {
    expect(() => parseHostfile(text, 'h')).toThrow(message);
  });

  test('a named hostfile must exist', () => {
    const missing = join(dir, 'absent');
    expect(() => readHostfile(missing)).toThrow(`--hostfile: expected a file`);
    expect(() => readHostfile(dir)).toThrow('EISDIR');
  });
});

describe('filters', () => {
  const nodes = [
    { host: 'a.b.c', slots: ['0', '1', '2', '3'] },
    { host: 'w2', slots: ['0', '1'] },
    { host: '[fe80::1]', slots: ['0'] },
  ];
  const formatHosts = (list: readonly { host: string; slots: readonly string[] }[]) =>
    list.map(({ host, slots }) => `${host}:${slots}`).join(' ');

  test.each([
    ['a.b.c', 'a.b.c:0,1,2,3'],
    ['w2:1@a.b.c:2,0', 'a.b.c:2,0 w2:1'],
    ['[fe80::1]:0@w2', 'w2:0,1 [fe80::1]:0'],
  ])('include %s', (text, expected) => {
    expect(formatHosts(includeSlots(nodes, text))).toBe(expected);
  });

  test.each([
    ['a.b.c', 'w2:0,1 [fe80::1]:0'],
    ['a.b.c:0,1@w2', 'a.b.c:2,3 [fe80::1]:0'],
    ['w2:0,1', 'a.b.c:0,1,2,3 [fe80::1]:0'],
  ])('exclude %s', (text, expected) => {
    expect(formatHosts(excludeSlots(nodes, text))).toBe(expected);
  });

  test.each([
    ['w3', 'expected one of the hosts a.b.c, w2, [fe80::1], got w3'],
    ['w2:2', 'expected slots of w2 (0, 1), got w2:2'],
    ['w2:', 'expected "host" or "host:0,1"'],
    ['w2:0,,1', 'expected "host" or "host:0,1"'],
    ['w2@w2:0', 'expected every host once'],
    ['w2:0,0', 'expected every slot once'],
    ['@', 'expected "host" or "host:0,1"'],
  ])('%j is refused', (text, message) => {
    expect(() => includeSlots(nodes, text)).toThrow(`--include: ${message}`);
    expect(() => excludeSlots(nodes, text)).toThrow(`--exclude: ${message}`);
  });

  test('filters must leave at least one slot', () => {
    expect(() => excludeSlots(nodes, 'a.b.c@w2@[fe80::1]')).toThrow('at least one slot');
  });
});

test('without /proc every CPU of the machine may be used', () => {
  const count = availableParallelism();
  expect(listAllowedCpus(join(dir, 'empty'))).toEqual(
    Array.from({ length: count }, (_, cpu) => cpu),
  );
});

describe('shell words and environment variables', () => {
  test('quoted words are split into themselves', () => {
    const words = ['', 'a b', "it's", '"$(id)"', 'a\nb', '\\', '`x`', '--a=b', '*', '~', 'ü'];
    expect(splitWords('x', words.map(quote).join(' '))).toEqual(words);
  });

  test('words are joined to a line that a shell splits again', () => {
    expect(splitWords('x', ` -o "A b\\"c" -i 'k y'\\ z `)).toEqual(['-o', 'A b"c', '-i', 'k y z']);
    expect(() => splitWords('--launcher_args', `"open`)).toThrow('--launcher_args: expected words');
  });

  test('KEY=VALUE lines are read', () => {
    const text = `# c\nA=1\n\nB="q" $(x)\nC=\r\nD=a=b\n`;
    expect(parseVariables(text, 'f')).toEqual({ A: '1', B: '"q" $(x)', C: '', D: 'a=b' });
    expect(() => parseVariables('A=1\nnonsense', 'f')).toThrow('f:2: expected KEY=VALUE');
    expect(() => parseVariables('1A=1', 'f')).toThrow('f:1: expected KEY=VALUE');
  });

  test('.deepspeed_env: the current folder wins over home, DS_ENV_FILE names another', () => {
    write('home/.deepspeed_env', 'NCCL_A=home\nB=home');
    write('cwd/.deepspeed_env', 'NCCL_A=cwd');
    write('other', 'A=other');
    const folders = [join(dir, 'home'), join(dir, 'cwd')];
    expect(readFileVariables({}, folders)).toEqual({ NCCL_A: 'cwd', B: 'home' });
    expect(readFileVariables({ DS_ENV_FILE: join(dir, 'other') }, folders)).toEqual({ A: 'other' });
    expect(() => readFileVariables({ DS_ENV_FILE: 'absent' }, folders)).toThrow('DS_ENV_FILE');
    expect(readFileVariables({}, [dir])).toEqual({});
    const taken: unknown[] = [];
    readFileVariables({}, folders, (file, names) => taken.push([file, names]));
    expect(taken).toEqual([
      [join(dir, 'home/.deepspeed_env'), ['NCCL_A', 'B']],
      [join(dir, 'cwd/.deepspeed_env'), ['NCCL_A']],
    ]);
  });

  test('variables of some prefixes travel, the secret does not', () => {
    const env = { NCCL_DEBUG: 'INFO', PYTHONPATH: 'x', DS_JOB_SECRET: 's', UCX_A: '1', HOME: '/' };
    expect(selectForwarded(env)).toEqual({ NCCL_DEBUG: 'INFO', UCX_A: '1' });
  });
});

describe('the variables of a rank', () => {
  const slurm = {
    SLURM_STEP_ID: '0',
    SLURM_PROCID: '5',
    SLURM_NTASKS: '8',
    SLURM_LOCALID: '1',
    SLURM_NODELIST: 'gpu[01-02]',
  };
  const mpi = {
    OMPI_COMM_WORLD_RANK: '3',
    OMPI_COMM_WORLD_SIZE: '4',
    OMPI_COMM_WORLD_LOCAL_RANK: '3',
    OMPI_COMM_WORLD_LOCAL_SIZE: '4',
  };

  test('come from a launcher, Open MPI or Slurm, in this order', () => {
    const launcher = { RANK: '1', WORLD_SIZE: '2', LOCAL_RANK: '0', MASTER_ADDR: 'h' };
    expect(rankFromEnvironment({ ...slurm, ...mpi, ...launcher })).toMatchObject({
      rank: '1',
      worldSize: '2',
      localRank: '0',
      masterAddr: 'h',
    });
    expect(rankFromEnvironment({ ...slurm, ...mpi })).toMatchObject({
      rank: '3',
      worldSize: '4',
      localRank: '3',
      masterAddr: '127.0.0.1',
    });
    expect(rankFromEnvironment({ ...slurm, MASTER_PORT: '1', DS_JOB_SECRET: 's' })).toEqual({
      rank: '5',
      worldSize: '8',
      localRank: '1',
      masterAddr: 'gpu01',
      masterPort: '1',
      secret: 's',
      timeout: undefined,
    });
    expect(rankFromEnvironment({}).worldSize).toBeUndefined();
  });

  test('a batch script of Slurm does not set the rank', () => {
    expect(rankFromEnvironment({ ...slurm, SLURM_STEP_ID: undefined }).rank).toBeUndefined();
  });

  test('Open MPI on several nodes needs MASTER_ADDR', () => {
    const wide = { ...mpi, OMPI_COMM_WORLD_LOCAL_SIZE: '2' };
    expect(() => rankFromEnvironment(wide)).toThrow('MASTER_ADDR: expected the address');
    expect(rankFromEnvironment({ ...wide, MASTER_ADDR: 'h' })).toMatchObject({ masterAddr: 'h' });
  });

  test.each([
    ['n1', ['n1']],
    ['gpu[08-10,3],login', ['gpu08', 'gpu09', 'gpu10', 'gpu3', 'login']],
    ['r[1-2]n[1-2]-ib', ['r1n1-ib', 'r1n2-ib', 'r2n1-ib', 'r2n2-ib']],
    ['', []],
  ])('node list %j', (list, expected) => {
    expect(expandNodeList(list)).toEqual(expected);
  });

  test.each(['a[1-', 'a[2-1]', 'a[x]', 'a]1[', 'a[1-99999999]', 'a[1-9999]b[1-9999]'])(
    'node list %j is refused',
    (list) => expect(() => expandNodeList(list)).toThrow('SLURM_NODELIST'),
  );
});

describe('cores', () => {
  test('lists of CPUs', () => {
    expect(parseCpuList('8,0-3,2\n', 'x')).toEqual([0, 1, 2, 3, 8]);
    expect(parseCpuList('', 'x')).toEqual([]);
    expect(formatRanges([8, 3, 1, 0, 2])).toBe('0-3,8');
    for (const bad of ['3-1', 'a', '1-', '-1', '1,,2', '99999999']) {
      expect(() => parseCpuList(bad, 'x')).toThrow('x: expected CPU numbers');
    }
  });

  /** Two NUMA nodes of four cores; core c has the threads c and c + 8. */
  function machine(): void {
    for (let cpu = 0; cpu < 16; cpu++) {
      const siblings = `${cpu % 8},${(cpu % 8) + 8}\n`;
      write(`sys/devices/system/cpu/cpu${cpu}/topology/thread_siblings_list`, siblings);
    }
    write('sys/devices/system/node/node0/cpulist', '0-3,8-11\n');
    write('sys/devices/system/node/node1/cpulist', '4-7,12-15\n');
    // No nodes: names of others in that folder.
    write('sys/devices/system/node/node2x/cpulist', '0-15\n');
    write('sys/devices/system/node/xnode3/cpulist', '0-15\n');
    write('proc/self/status', 'Name:\tnode\nCpus_allowed_list:\t0-6,8-14\n');
    const gpus = { '0000:17:00.0': 1, '0000:B9:00.0': 0 };
    for (const [address, numa] of Object.entries(gpus)) {
      write(`proc/driver/nvidia/gpus/${address}/information`, `GPU UUID: \t GPU-${numa}cafe\n`);
      write(`sys/bus/pci/devices/${address.toLowerCase()}/numa_node`, `${numa}\n`);
    }
  }

  test('cores of the CPUs that the process may use, and GPUs near them', () => {
    machine();
    expect(listAllowedCpus(dir)).toHaveLength(14);
    const cores = listCores(listAllowedCpus(dir), dir);
    expect(cores).toHaveLength(7);
    expect(cores[5]).toEqual({ cpus: [5, 13], numaNode: 1 });
    const numaNodes = ['0', '1', 'GPU-0ca', '2', 'x'].map((gpu) => gpuNumaNode(gpu, dir));
    expect(numaNodes).toEqual([1, 0, 0, null, null]);
    const shares = splitCores(cores, [1, 1, 0])?.map((share) => share.map((c) => c.cpus[0]));
    expect(shares).toEqual([[4], [5, 6], [0, 1, 2, 3]]);
  });

  test('a machine without topology has one core per CPU', () => {
    expect(listCores([1, 0], join(dir, 'absent'))).toEqual([
      { cpus: [0], numaNode: 0 },
      { cpus: [1], numaNode: 0 },
    ]);
    expect(listAllowedCpus(join(dir, 'absent')).length).toBeGreaterThan(0);
  });

  test.each([1, 2, 3, 5, 7])('%i ranks without a place share all cores evenly', (ranks) => {
    const cores = Array.from({ length: 7 }, (_, i) => ({ cpus: [i], numaNode: i < 4 ? 0 : 1 }));
    const shares = splitCores(cores, new Array(ranks).fill(null)) as Core[][];
    expect(shares.flat().map((core) => core.cpus[0])).toEqual([0, 1, 2, 3, 4, 5, 6]);
    const sizes = shares.map((share) => share.length);
    expect(Math.max(...sizes) - Math.min(...sizes)).toBeLessThanOrEqual(1);
    expect(splitCores(cores, new Array(8).fill(null))).toBeNull();
  });

  test('if one rank has no NUMA node, all ranks share all cores', () => {
    const cores = Array.from({ length: 4 }, (_, i) => ({ cpus: [i], numaNode: i < 2 ? 0 : 1 }));
    for (const unknown of [null, 7]) {
      const shares = splitCores(cores, [1, unknown]);
      expect(shares?.map((share) => share.map((core) => core.cpus[0]))).toEqual([
        [0, 1],
        [2, 3],
      ]);
    }
  });
});

describe('CUDA_VISIBLE_DEVICES', () => {
  const probe = {
    library: '/libds_cuda.so',
    deviceCount: 4,
    driverVersion: 13000,
    runtimeVersion: 13000,
    message: '',
  };

  test.each([
    [undefined, ['0', '1', '2', '3']],
    ['2,3', ['2', '3']],
    [' GPU-ab ,1', ['GPU-ab', '1']],
    ['', []],
    ['1,-1,2', ['1']],
  ])('%j', (value, expected) => {
    expect(listVisibleGpus({ CUDA_VISIBLE_DEVICES: value }, probe)).toEqual(expected);
  });

  test('missing GPUs are refused', () => {
    const none = { ...probe, deviceCount: 1, message: 'No driver.' };
    expect(() => listVisibleGpus({ CUDA_VISIBLE_DEVICES: '0,9' }, none)).toThrow(
      'CUDA_VISIBLE_DEVICES: expected GPUs that can be used, got "0,9"; 1 can be used. No driver.',
    );
  });
});

test("flags of DeepSpeed's launcher without effect are accepted", () => {
  for (const flag of ['--force_multi', '--no_ssh_check']) {
    expect(takeLaunchOptions([flag, '--lr', '1'], null).rest).toEqual(['--lr', '1']);
  }
});
