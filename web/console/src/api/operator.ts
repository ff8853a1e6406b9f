// Who asks, and what they may do.

import { ask } from './desk';

export const ROLES = ['view', 'view-body', 'redrive', 'discard', 'repair', 'import', 'edit', 'sign-out', 'drain'] as const;
export type Role = (typeof ROLES)[number];

export interface Operator {
  name: string;
  roles: Role[];
  /** Operators sign in here. */
  signed_in: boolean;
}

export function me(): Promise<Operator> {
  return ask('/me');
}

/** Why an operator cannot do what needs this role; `undefined` where they can, or nobody is known yet. */
export function lacking(operator: Operator | undefined, role: Role): string | undefined {
  if (!operator || operator.roles.includes(role)) return undefined;
  return `${operator.name} has no role “${role}”`;
}
