// Escapes texts for HTML, as the filter "escape" does.
import { required } from '../../runtime/required.js';
import { str } from './print.js';
import { Markup, type Value } from './values.js';

const ENTITIES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  "'": '&#39;',
  '"': '&#34;',
};

/** Escapes a text for HTML. */
export const escapeHtml = (text: string): string =>
  /[&<>'"]/.test(text) ? text.replace(/[&<>'"]/g, (letter) => required(ENTITIES[letter])) : text;

/** escape(): escapes a value unless it is marked as safe. */
export const escapeValue = (value: Value): string =>
  value instanceof Markup ? value.text : escapeHtml(str(value));
