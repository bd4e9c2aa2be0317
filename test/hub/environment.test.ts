// Settings from the environment, names, patterns of retries, and the line of the progress.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { homedir, tmpdir } from 'node:os';
import { join } from 'node:path';

import { DownloadProgress, formatDecimalBytes } from '../../lib/hub/download-progress.js';
import { readHubSettings } from '../../lib/hub/environment.js';
import { isModelName } from '../../lib/hub/names.js';
import { parseRetryAfter } from '../../lib/hub/retries.js';
import { thrownBy } from '../support/refusal.js';

test('uses the cache folder of Python', () => {
  const cache = (env: Record<string, string>) => readHubSettings(env).cache;
  expect(cache({})).toBe(join(homedir(), '.cache', 'huggingface', 'hub'));
  expect(cache({ XDG_CACHE_HOME: '/x' })).toBe('/x/huggingface/hub');
  expect(cache({ XDG_CACHE_HOME: '/x', HF_HOME: '/h' })).toBe('/h/hub');
  expect(cache({ HF_HOME: '~/h' })).toBe(join(homedir(), 'h', 'hub'));
  expect(cache({ HF_HOME: '/h', HUGGINGFACE_HUB_CACHE: '/c' })).toBe('/c');
  expect(cache({ HF_HUB_CACHE: '/d', HUGGINGFACE_HUB_CACHE: '/c' })).toBe('/d');
});

test('reads the token from HF_TOKEN, or from its file', () => {
  const home = mkdtempSync(join(tmpdir(), 'hub-home-'));
  try {
    expect(readHubSettings({ HF_HOME: home }).token).toBeNull();
    writeFileSync(join(home, 'token'), 'hf_file\n');
    expect(readHubSettings({ HF_HOME: home })).toMatchObject({
      token: 'hf_file',
      tokenSource: join(home, 'token'),
    });
    expect(readHubSettings({ HF_HOME: home, HF_TOKEN: ' hf_own ' })).toMatchObject({
      token: 'hf_own',
      tokenSource: 'HF_TOKEN',
    });
    const implicit = { HF_HOME: home, HF_HUB_DISABLE_IMPLICIT_TOKEN: '1' };
    expect(readHubSettings(implicit).token).toBeNull();
    const error = thrownBy(() => readHubSettings({ HF_HOME: home, HF_TOKEN: 'secret\r\nX: y' }));
    expect(error.op).toBe('HF_TOKEN');
    expect(error.message).not.toContain('secret');
  } finally {
    rmSync(home, { recursive: true });
  }
});

test('the endpoint, switches and timeouts of the environment are read', () => {
  expect(readHubSettings({ HF_ENDPOINT: 'https://mirror/hf/' }).endpoint).toBe('https://mirror/hf');
  const secret = thrownBy(() => readHubSettings({ HF_ENDPOINT: 'https://me:pass@mirror' }));
  expect(secret.message).not.toContain('pass@');
  for (const endpoint of ['mirror', 'file:///x', 'https://x/?a']) {
    expect(thrownBy(() => readHubSettings({ HF_ENDPOINT: endpoint })).op).toBe('HF_ENDPOINT');
  }
  for (const value of ['1', 'on', 'YES', 'true']) {
    expect(readHubSettings({ HF_HUB_OFFLINE: value }).offline).toBe(true);
  }
  expect(readHubSettings({ HF_HUB_OFFLINE: '0' }).offline).toBe(false);
  expect(readHubSettings({ HF_HUB_DOWNLOAD_TIMEOUT: '5' }).stallMs).toBe(5000);
  const seconds = thrownBy(() => readHubSettings({ HF_HUB_DOWNLOAD_TIMEOUT: 'x' }));
  expect(seconds.op).toBe('HF_HUB_DOWNLOAD_TIMEOUT');
});

test('valid names of the hub are accepted, others refused', () => {
  for (const name of ['gpt2', 'Qwen/Qwen3-0.6B', 'a_b/c.d', '01-ai/Yi-6B']) {
    expect(isModelName(name)).toBe(true);
  }
  const others = ['', '.', '..', './x', '/x', '../x', 'a/', '/a', 'a//b', 'a/b/c', 'a b', 'a\\b'];
  const more = ['~/x', 'a--b', 'a..b', 'x.git', 'datasets/x', 'C:x', '-a', 'a-', 'x\0', 'ü/x'];
  for (const name of [...others, ...more, 'x'.repeat(97)])
    expect([name, isModelName(name)]).toEqual([name, false]);
});

test('Retry-After is read in seconds and as a date', () => {
  expect(parseRetryAfter('2')).toBe(2000);
  expect(parseRetryAfter('Wed, 21 Oct 2026 07:28:00 GMT', Date.UTC(2026, 9, 21, 7, 27))).toBe(
    60_000,
  );
  expect(parseRetryAfter('Wed, 21 Oct 2020 07:28:00 GMT')).toBe(0);
  for (const header of [null, 'soon', '-1x', '']) expect(parseRetryAfter(header)).toBeNull();
});

test('progress is a bar on a terminal, lines elsewhere, and absent without a download', () => {
  const written: string[] = [];
  let now = 0;
  const bar = (isTTY: boolean) =>
    new DownloadProgress(
      'Qwen/Qwen3-0.6B',
      { isTTY, columns: 70, write: (text: string) => written.push(text) },
      () => now,
    );
  const cached = bar(true);
  cached.addTotal(10);
  cached.addCached(10);
  cached.finish(true);
  expect(written).toEqual([]);
  for (const isTTY of [true, false]) {
    written.length = 0;
    const downloadProgress = bar(isTTY);
    downloadProgress.addTotal(2_000_000_000);
    for (let i = 0; i < 41; ++i) {
      downloadProgress.addDownloaded(25_000_000);
      now += 500;
    }
    downloadProgress.finish(true);
    expect(written[0]).toBe('Qwen/Qwen3-0.6B: downloading 2.00 GB\n');
    const drawn = written.filter((text) => text.includes('%'));
    expect(drawn.length).toBe(isTTY ? 40 : 2);
    expect(drawn.at(-1)).toMatch(/5\d% {2}1\.0\d GB of 2\.00 GB {2}50\.\d MB\/s {2}0:\d\d left/);
    expect(drawn.every((text) => text.length <= 70 + '\r\x1b[2K'.length)).toBe(true);
    expect(written.at(-1)).toMatch(/downloaded 1\.0\d GB in 0:2\d \(50\.0 MB\/s\)\n$/);
  }
  expect([0, 999, 1000, 1_234_567].map(formatDecimalBytes)).toEqual([
    '0 B',
    '999 B',
    '1.00 kB',
    '1.23 MB',
  ]);
});
