//! Every interleaving of the steps of some parties, for tests.

pub(crate) type Step<W> = fn(&mut W);

/// Number of interleavings, and of those that end badly.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Orders {
    pub(crate) all: u32,
    pub(crate) bad: u32,
}

/// Runs every interleaving of the parties' steps, each party's own steps in order.
pub(crate) fn explore<W: Clone>(
    world: &W,
    parties: &[&[Step<W>]],
    is_bad: fn(W) -> bool,
) -> Orders {
    let mut orders = Orders { all: 0, bad: 0 };
    let mut has_step = false;
    for turn in 0..parties.len() {
        let Some((step, rest)) = parties[turn].split_first() else {
            continue;
        };
        has_step = true;
        let (mut world, mut parties) = (world.clone(), parties.to_vec());
        step(&mut world);
        parties[turn] = rest;
        let inner_orders = explore(&world, &parties, is_bad);
        orders.all += inner_orders.all;
        orders.bad += inner_orders.bad;
    }
    if !has_step {
        orders.all = 1;
        orders.bad = u32::from(is_bad(world.clone()));
    }
    orders
}
