// Tests the site of `npm run docs`: opens the guides and some symbol pages in a headless browser,
// reads the other symbol pages as text, and follows all links.
//
//   node scripts/browse-docs.mjs [FOLDER]   FOLDER receives two screenshots of the offload page
//
// Needs Chromium or Chrome; CHROME names another program. No request leaves this machine.
import { createReadStream, existsSync, mkdirSync, readdirSync, readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import path from 'node:path';
import { chromium } from 'playwright-core';
import { browserProgram } from './browser-program.mjs';

process.chdir(path.join(import.meta.dirname, '..'));
const SITE = path.resolve('docs/api');
const TABS = 2;
/** Pages of symbols that are opened in the browser, and read as text for comparison. */
const OPENED = 20;
const PHONE = { width: 390, height: 844 };
const SCREEN = { width: 1280, height: 800 };
const TYPES = {
  '.html': 'text/html',
  '.css': 'text/css',
  '.js': 'text/javascript',
  '.svg': 'image/svg+xml',
};

function serveSite() {
  const server = createServer((request, response) => {
    const name = decodeURIComponent(new URL(request.url, 'http://site').pathname);
    const file = path.join(SITE, name);
    if (!file.startsWith(SITE + path.sep) || !existsSync(file)) {
      response.writeHead(404).end();
      return;
    }
    const type = TYPES[path.extname(file)];
    const headers = { 'cache-control': 'max-age=600', ...(type && { 'content-type': type }) };
    response.writeHead(200, headers);
    createReadStream(file).pipe(response);
  });
  return new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(server)));
}

/** Faults by page, printed at the end. */
const faults = [];
const fault = (name, text) => faults.push(`${name}: ${text}`);

/** Opens one page; returns its ids and links, and reports errors of its scripts and requests. */
async function visit(tab, address, name) {
  const report = (text) => fault(name, text);
  const onError = (error) => report(`script: ${error.message}`);
  const onAnswer = (answer) => {
    if (answer.status() >= 400) report(`request: ${answer.status()} ${answer.url()}`);
  };
  tab.on('pageerror', onError);
  tab.on('response', onAnswer);
  await tab.goto(`${address}/${name}`, { waitUntil: 'load' });
  tab.off('pageerror', onError);
  tab.off('response', onAnswer);
  // The menu is the same on all pages.
  const where = name === 'index.html' ? 'body' : '.col-content';
  return tab.evaluate(
    (where) => ({
      ids: [...document.querySelectorAll('[id]')].map((element) => element.id),
      links: [...document.querySelectorAll(`${where} a[href]`)].map((link) => link.href),
      blocks: document.querySelectorAll('.col-content pre').length,
      pictures: [...document.images].filter((image) => image.naturalWidth === 0).map((i) => i.src),
    }),
    where,
  );
}

const ENTITIES = { amp: '&', lt: '<', gt: '>', quot: '"', '#39': "'", '#x27': "'" };
/** The values of an attribute of all elements that `tag` matches. */
const attributes = (text, tag, attribute) =>
  [...text.matchAll(new RegExp(`<(?:${tag})\\b[^>]*?\\s${attribute}="([^"]*)"`, 'g'))].map(
    ([, value]) => value.replace(/&(#?\w+);/g, (all, name) => ENTITIES[name] ?? all),
  );

/** Returns as `visit` the ids and links of a page of symbols, without the browser. */
function readText(address, name) {
  const text = readFileSync(path.join(SITE, name), 'utf8');
  const [, content] = text.match(/<div class="col-content">(.*)<div class="col-sidebar">/s) ?? [];
  if (content === undefined) {
    fault(name, 'expected a column with the content and one beside it');
    return { ids: [], links: [], pictures: [] };
  }
  const own = new URL(name, `${address}/`);
  const absolute = (link) => new URL(link, own).href;
  const isMissing = (link) => {
    const { origin, pathname } = new URL(link, own);
    return origin === address && !existsSync(path.join(SITE, decodeURIComponent(pathname)));
  };
  const requests = [...attributes(text, 'script|img', 'src'), ...attributes(text, 'link', 'href')];
  for (const link of requests.filter(isMissing)) fault(name, `request: no file ${link}`);
  return {
    ids: attributes(text, '\\w+', 'id'),
    links: attributes(content, 'a', 'href').map(absolute),
    pictures: [],
  };
}

/** Runs `work` on all items with several tabs. */
async function inTabs(browser, items, work) {
  const rest = [...items];
  const run = async () => {
    const tab = await browser.newPage({ viewport: SCREEN });
    for (let item = rest.shift(); item !== undefined; item = rest.shift()) await work(tab, item);
    await tab.close();
  };
  await Promise.all(Array.from({ length: TABS }, run));
}

function checkLinks(pages, address) {
  const checked = new Set();
  for (const [name, { links }] of pages) {
    for (const link of links) {
      if (checked.has(link)) continue;
      checked.add(link);
      const url = new URL(link);
      if (url.origin !== address) {
        if (url.protocol !== 'https:') fault(name, `link: expected https, got ${link}`);
        continue;
      }
      const target = decodeURIComponent(url.pathname.slice(1)) || 'index.html';
      const anchor = decodeURIComponent(url.hash.slice(1));
      if (!existsSync(path.join(SITE, target))) fault(name, `link: no page ${target}`);
      else if (anchor && pages.has(target) && !pages.get(target).ids.includes(anchor)) {
        fault(name, `link: no heading ${anchor} on ${target}`);
      }
    }
  }
  return checked.size;
}

/** Each fenced block of a guide is a block of the site. */
function checkBlocks(pages) {
  let blocks = 0;
  for (const name of pages.keys()) {
    const source = name.match(/^documents\/(.+)\.html$/);
    if (!source) continue;
    const file = guides.get(source[1].toLowerCase());
    if (!file) {
      fault(name, 'expected a page of docs');
      continue;
    }
    const fences = (readFileSync(file, 'utf8').match(/^ *```/gm)?.length ?? 0) / 2;
    if (pages.get(name).blocks !== fences) {
      fault(name, `code blocks: expected ${fences}, got ${pages.get(name).blocks}`);
    }
    blocks += fences;
  }
  return blocks;
}

async function checkSearch(tab, address) {
  await tab.goto(`${address}/index.html`);
  await tab.click('#tsd-search-trigger');
  await tab.fill('#tsd-search-input', 'gradient clipping');
  const results = tab.locator('#tsd-search-results a');
  await results.first().waitFor({ timeout: 30_000 });
  const found = await results.evaluateAll((links) => links.map((link) => link.href));
  const guide = found.findIndex((link) => link.includes('/documents/'));
  if (guide < 0) fault('search', `expected a guide, got ${found.join(' ')}`);
  else await results.nth(guide).click();
  await tab.waitForLoadState();
  const text = await tab.textContent('.col-content');
  if (!/gradient[ _]clipping/i.test(text)) {
    fault('search', `expected a page about gradient clipping, got ${tab.url()}`);
  }
  return found.length;
}

/** No guide is wider than the window. */
async function checkWidths(tab, name) {
  for (const viewport of [PHONE, SCREEN]) {
    await tab.setViewportSize(viewport);
    const width = await tab.evaluate(() => document.documentElement.scrollWidth);
    if (width > viewport.width) fault(name, `expected ${viewport.width} pixels, got ${width}`);
  }
}

const guides = new Map(
  readdirSync('docs')
    .filter((file) => file.endsWith('.md'))
    .map((file) => [path.basename(file, '.md').toLowerCase(), path.join('docs', file)]),
);
if (!existsSync(SITE)) throw new Error('expected docs/api; run npm run docs');
const files = readdirSync(SITE, { recursive: true }).filter((file) => file.endsWith('.html'));
const server = await serveSite();
const address = `http://127.0.0.1:${server.address().port}`;
const browser = await chromium.launch({
  executablePath: browserProgram(),
  args: ['--no-sandbox', '--disable-gpu', '--disable-features=BackForwardCache'],
});
try {
  const pages = new Map();
  const open = async (tab, name) => {
    const page = await visit(tab, address, name);
    for (const picture of page.pictures) fault(name, `picture: ${picture}`);
    if (name === 'index.html' || name.startsWith('documents/')) await checkWidths(tab, name);
    pages.set(name, page);
  };
  const guided = files.filter((name) => !/\//.test(name) || name.startsWith('documents/'));
  const symbols = files.filter((name) => !guided.includes(name));
  await inTabs(browser, [...guided, ...symbols.slice(0, OPENED)], open);
  for (const [i, name] of symbols.entries()) {
    const page = readText(address, name);
    // A new form of the site must not hide links.
    const seen = new Set(page.links);
    const unread = i < OPENED ? pages.get(name).links.filter((link) => !seen.has(link)) : [];
    for (const link of unread) fault(name, `text: expected the link ${link}`);
    pages.set(name, page);
  }
  const links = checkLinks(pages, address);
  const blocks = checkBlocks(pages);
  const tab = await browser.newPage({ viewport: SCREEN });
  const results = await checkSearch(tab, address);
  const [folder] = process.argv.slice(2);
  if (folder) {
    mkdirSync(folder, { recursive: true });
    for (const viewport of [PHONE, SCREEN]) {
      await tab.setViewportSize(viewport);
      await tab.goto(`${address}/documents/offload.html`);
      await tab.screenshot({ path: path.join(folder, `${viewport.width}.png`) });
    }
  }
  console.log(
    `browse-docs: ${pages.size} pages, ${links} links, ${blocks} code blocks, ` +
      `${results} results of the search, ${faults.length} faults`,
  );
} finally {
  await browser.close();
  server.close();
}
for (const text of faults.slice(0, 60)) console.error(text);
if (faults.length > 0) process.exitCode = 1;
