// Texts for HTML, as the filter "escape" writes them.
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

/** A text for HTML, as the filter "escape" writes it. */
export const escaped = (text: string): string =>
  /[&<>'"]/.test(text) ? text.replace(/[&<>'"]/g, (letter) => required(ENTITIES[letter])) : text;

/** escape(): a text that is marked stays. */
export const escapedText = (value: Value): string =>
  value instanceof Markup ? value.text : escaped(str(value));
