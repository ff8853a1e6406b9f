// Operator's token, in memory and in the session storage of this tab. Never part of an address.

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
    // Browsers may forbid storage; a reload then needs a new sign-in.
  }
}

export function forgetToken(): void {
  known = undefined;
  try {
    sessionStorage.removeItem(KEY);
  } catch {
    // See `keepToken`.
  }
}

function stored(): string | undefined {
  try {
    return sessionStorage.getItem(KEY) ?? undefined;
  } catch {
    return undefined;
  }
}
