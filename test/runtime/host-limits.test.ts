// Tests the memory limits of the system, read from files in the formats of both control group
// versions.
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { hostLimits } from '../../lib/runtime/host-limits.js';

const GIB = 2 ** 30;
let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'ds-limits-'));
});
afterEach(() => rmSync(root, { recursive: true }));

function files(contents: Record<string, string>): void {
  for (const [path, text] of Object.entries(contents)) {
    mkdirSync(dirname(join(root, path)), { recursive: true });
    writeFileSync(join(root, path), text);
  }
}

const meminfo = `MemTotal:       ${16 * 2 ** 20} kB
MemFree:         ${4 * 2 ** 20} kB
MemAvailable:    ${5 * 2 ** 20} kB
Buffers:         ${1 * 2 ** 20} kB
Cached:          ${3 * 2 ** 20} kB
SReclaimable:    ${1 * 2 ** 20} kB
Shmem:           ${1 * 2 ** 20} kB
SwapTotal:       ${3 * 2 ** 20} kB
SwapFree:        ${2 * 2 ** 20} kB
`;

test('free memory is all that the kernel can drop or swap out', () => {
  files({ 'proc/meminfo': meminfo, 'proc/cpuinfo': 'flags\t\t: fpu vme avx2\n' });
  const { total, free, atMost, canGrow, groups } = hostLimits(root);
  expect([total, free, atMost]).toEqual([16 * GIB, 10 * GIB, 19 * GIB]);
  expect(canGrow).toBe(false);
  expect(groups).toEqual([]);
});

test("the kernel's own estimate wins if it is larger; the cache of ZFS shrinks as well", () => {
  files({ 'proc/meminfo': meminfo.replace(/(MemAvailable: +)\d+/, `$1${9 * 2 ** 20}`) });
  expect(hostLimits(root).free).toBe((9 + 2) * GIB);
  files({
    'proc/spl/kstat/zfs/arcstats': `9 1 0x01 123 33456 1 2\nname type data\nhits 4 7\nsize ${' '.repeat(20)}4    ${3 * GIB}\nc_min 4 1\n`,
  });
  expect(hostLimits(root).free).toBe((9 + 2 + 3) * GIB);
});

test('a virtual machine can grow', () => {
  files({ 'proc/meminfo': meminfo, 'proc/cpuinfo': 'flags\t\t: fpu hypervisor avx2\n' });
  expect(hostLimits(root).canGrow).toBe(true);
});

test('groups of version 2, from the innermost on; "max" is no limit', () => {
  files({
    'proc/meminfo': meminfo,
    'proc/self/cgroup': '0::/jobs/mine/part\n',
    'sys/fs/cgroup/jobs/mine/part/memory.max': 'max\n',
    'sys/fs/cgroup/jobs/mine/memory.max': `${8 * GIB}\n`,
    'sys/fs/cgroup/jobs/mine/memory.current': `${5 * GIB}\n`,
    'sys/fs/cgroup/jobs/mine/memory.stat': `anon 1\ninactive_file ${GIB}\nactive_file ${GIB}\nslab_reclaimable 0\n`,
    'sys/fs/cgroup/jobs/memory.max': `${12 * GIB}\n`,
    'sys/fs/cgroup/jobs/memory.current': '0\n',
  });
  expect(hostLimits(root).groups).toEqual([
    { group: '/jobs/mine', limit: 8 * GIB, free: (8 - 5 + 2 + 2) * GIB },
    { group: '/jobs', limit: 12 * GIB, free: (12 + 2) * GIB },
  ]);
});

test('control groups of version 1 are read; the largest number means no limit', () => {
  files({
    'proc/meminfo': meminfo.replace(/SwapFree.*\n/, ''),
    'proc/self/cgroup': '5:cpu,cpuacct:/a\n4:memory:/docker/1\n0::/\n',
    'sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes': `${4 * GIB}\n`,
    'sys/fs/cgroup/memory/docker/1/memory.usage_in_bytes': `${2 * GIB}\n`,
    'sys/fs/cgroup/memory/docker/1/memory.stat': `cache 1\ntotal_active_file ${GIB}\ntotal_inactive_file 0\n`,
    'sys/fs/cgroup/memory/memory.limit_in_bytes': '9223372036854771712\n',
  });
  expect(hostLimits(root).groups).toEqual([{ group: '/docker/1', limit: 4 * GIB, free: 3 * GIB }]);
  const kernel = 'sys/fs/cgroup/memory/docker/1/memory.kmem.usage_in_bytes';
  files({ [kernel]: `${GIB / 2}\n` });
  expect(hostLimits(root).groups[0]?.free).toBe(3.5 * GIB);
});

test('without values from the system there is no limit', () => {
  const { total, free, groups } = hostLimits(root);
  expect([total, free]).toEqual([Number.MAX_SAFE_INTEGER, Number.MAX_SAFE_INTEGER]);
  expect(groups).toEqual([]);
});

test('the limits of this machine are read', () => {
  const { total, free, machine } = hostLimits();
  expect(free).toBeGreaterThan(2 ** 20);
  expect(total).toBeGreaterThan(2 ** 20);
  expect(machine).toBe(hostLimits().machine);
});
