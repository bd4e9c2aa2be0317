// Parses --include and --exclude, which select hosts and slots in DeepSpeed's notation.
import { refuse } from './argument-error.js';
import type { Node } from './hostfile.js';

/** Slots by host; null means all slots. */
type Selection = Map<string, string[] | null>;

/**
 * Parses filters "host" and "host:0,1", joined by "@". A colon in brackets belongs to the host
 * ("[fe80::1]:0"). Throws DS_ARGUMENT for another form, or a host that occurs twice.
 */
function parseFilter(option: string, text: string): Selection {
  const selection: Selection = new Map();
  for (const item of text.split('@')) {
    const [, host, list] = /^(\[[^\]]*\]|[^:\s]+)(?::(.*))?$/.exec(item.trim()) ?? [];
    const slots = list === undefined ? null : list.split(',').map((slot) => slot.trim());
    if (!host || slots?.some((slot) => slot === '')) {
      return refuse(option, '"host" or "host:0,1", several joined by "@"', JSON.stringify(text));
    }
    if (selection.has(host)) refuse(option, 'every host once', `${host} again`);
    const repeated = slots?.find((slot, i) => slots.indexOf(slot) !== i);
    if (repeated !== undefined) refuse(option, 'every slot once', `${host}:${repeated} again`);
    selection.set(host, slots);
  }
  return selection;
}

/**
 * Keeps the hosts and slots in `text`: hosts in the order of `nodes`, slots in the order of `text`.
 * Throws DS_ARGUMENT for unknown hosts or slots.
 */
export function includeSlots(nodes: readonly Node[], text: string): Node[] {
  const selection = parseFilter('--include', text);
  requireKnownSlots('--include', nodes, selection);
  return nodes
    .filter(({ host }) => selection.has(host))
    .map(({ host, slots }) => ({ host, slots: selection.get(host) ?? slots }));
}

/** Removes the hosts and slots in `text`. Throws DS_ARGUMENT, also if no slot remains. */
export function excludeSlots(nodes: readonly Node[], text: string): Node[] {
  const selection = parseFilter('--exclude', text);
  requireKnownSlots('--exclude', nodes, selection);
  const remaining = nodes
    .map(({ host, slots }) => {
      const excluded = selection.has(host) ? (selection.get(host) ?? slots) : [];
      return { host, slots: slots.filter((slot) => !excluded.includes(slot)) };
    })
    .filter(({ slots }) => slots.length > 0);
  if (remaining.length === 0)
    refuse('--exclude', 'at least one slot to be left', JSON.stringify(text));
  return remaining;
}

function requireKnownSlots(option: string, nodes: readonly Node[], selection: Selection): void {
  for (const [host, slots] of selection) {
    const node = nodes.find((node) => node.host === host);
    if (!node) {
      refuse(option, `one of the hosts ${nodes.map((node) => node.host).join(', ')}`, host);
    }
    const unknown = slots?.find((slot) => !node.slots.includes(slot));
    if (unknown !== undefined) {
      refuse(option, `slots of ${host} (${node.slots.join(', ')})`, `${host}:${unknown}`);
    }
  }
}
