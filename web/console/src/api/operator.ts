// Operator and roles.

import { ask } from './desk';

export const ROLES = ['view', 'view_body', 'redrive', 'discard', 'repair', 'import', 'edit', 'sign_out', 'drain'] as const;
export type Role = (typeof ROLES)[number];

export interface Operator {
  name: string;
  roles: Role[];
  /** True if operators sign in at this desk. */
  signed_in: boolean;
}

export function me(): Promise<Operator> {
  return ask('/me');
}

/** Name of a role in the settings: `view-body` for `view_body`. */
export function nameOf(role: Role): string {
  return role.replaceAll('_', '-');
}

/** Text for a missing role; `undefined` if the operator has it or is not known yet. */
export function lacking(operator: Operator | undefined, role: Role): string | undefined {
  if (!operator || operator.roles.includes(role)) return undefined;
  return `${operator.name} lacks the role “${nameOf(role)}”`;
}
