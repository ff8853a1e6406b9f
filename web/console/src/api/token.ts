// The operator's token: in memory, and in the storage of this tab, which ends with it. It never stands in an address.

const KEY = 'operator-token';

let known: string | undefined = stored();

export function token(): string | undefined {
  return known;
}

export function keepToken(text: string): void {
  known = text;
  try {
    sessionStorage.setItem(KEY, text);
  } catch {
    // A browser may forbid storage; then one signs in again after a reload.
  }
}

export function forgetToken(): void {
  known = undefined;
  try {
    sessionStorage.removeItem(KEY);
  } catch {
    // As above.
  }
}

function stored(): string | undefined {
  try {
    return sessionStorage.getItem(KEY) ?? undefined;
  } catch {
    return undefined;
  }
}
