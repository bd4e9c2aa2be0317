// Requests to the server. The token comes from the link and stays in this tab.
const KEY = 'ds-watch-token';
/** Milliseconds until a request without an answer fails. */
const TIMEOUT = 8000;

export class Unauthorized extends Error {}

/** Takes the token out of the address, so that a copied address or a screenshot lacks it. */
function takeToken() {
  const given = location.hash.slice(1);
  if (/^[\w-]{16,128}$/.test(given)) {
    sessionStorage.setItem(KEY, given);
    history.replaceState(null, '', location.pathname);
  }
  return sessionStorage.getItem(KEY) ?? '';
}

let token = takeToken();
addEventListener('hashchange', () => {
  token = takeToken();
});

/** Returns the JSON of a route. Throws Unauthorized for a wrong token, Error for other failures. */
export async function get(route, parameters = {}) {
  const query = new URLSearchParams(parameters).toString();
  const answer = await fetch(`/api/${route}${query ? `?${query}` : ''}`, {
    headers: { authorization: `Bearer ${token}` },
    signal: AbortSignal.timeout(TIMEOUT),
  });
  if (answer.status === 401) throw new Unauthorized(await answer.text());
  if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
  return answer.json();
}
