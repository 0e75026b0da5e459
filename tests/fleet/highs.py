#!/usr/bin/env python3
"""HiGHS, a solver that this project does not use, finds the optimum of random clusters' policies; our answers must be as
good. Ends with 77 where the package highspy is missing.

    highs.py --program BUILD/tests/fleet_instances [--count N]
"""
import argparse
import json
import subprocess
import sys

try:
    import highspy
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)


class Cluster:
    """The arrays of one line: columns are shares alone, then of pairs."""

    def __init__(self, line, paired):
        jobs, types = line["jobs"], line["types"]
        self.jobs, self.types = len(jobs), len(types)
        self.scale = np.array([job["scale"] for job in jobs], float)
        self.devices = np.array([kind["devices"] for kind in types], float)
        self.cost = np.array([kind["cost"] for kind in types])
        self.pairs = line["pairs"] if paired else []
        speeds = np.array(line["throughput"]).reshape(self.jobs, self.types)
        # What a job gets per share: alone[m, j] of job m; pairs (first, second).
        fits = self.scale[:, None] <= self.devices[None, :]
        columns = self.jobs * self.types + len(self.pairs) * self.types
        self.speed = np.zeros((self.jobs, columns))
        self.time = np.zeros((self.jobs, columns))
        self.use = np.zeros((self.types, columns))
        first = np.array(line["first"]).reshape(-1, self.types)
        second = np.array(line["second"]).reshape(-1, self.types)
        for m in range(self.jobs):
            for j in range(self.types):
                at = m * self.types + j
                self.speed[m, at] = speeds[m, j] if fits[m, j] else 0
                self.time[m, at] = 1
                self.use[j, at] = self.scale[m]
        for c, (a, b) in enumerate(self.pairs):
            for j in range(self.types):
                at = (self.jobs + c) * self.types + j
                runs = first[c, j] > 0 and second[c, j] > 0 and fits[a, j]
                self.speed[a, at], self.speed[b, at] = (first[c, j], second[c, j]) if runs else (0, 0)
                self.time[a, at] = self.time[b, at] = 1
                self.use[j, at] = self.scale[a]
        self.proportional = speeds @ (self.devices / self.devices.sum())
        own = self.devices[None, :] / (self.jobs * self.scale[:, None])
        own /= np.maximum(1, own.sum(axis=1))[:, None]
        self.isolated = (speeds * own).sum(axis=1)
        self.weight = np.array([job["weight"] for job in jobs])
        self.steps = np.array([job["steps_left"] for job in jobs])
        self.age = np.array([job["age_s"] for job in jobs])
        self.alone_s = np.array([job["isolated_s"] for job in jobs]) + self.steps / self.isolated
        self.able = (self.speed[:, : self.jobs * self.types] > 0).any(axis=1)

    def broken(self, shares):
        """By how much shares break the rules."""
        return max(-shares.min(), (self.time @ shares - 1).max(), ((self.use @ shares - self.devices) / np.maximum(1, self.devices)).max())

    def highest(self, demand, gain=None, reward=None):
        """max L (or reward) with speed ≥ demand + L gain; None where that cannot be."""
        columns = self.speed.shape[1]
        rows = [self.speed, self.time, self.use]
        lower = np.concatenate([demand, np.full(self.jobs + self.types, -highspy.kHighsInf)])
        upper = np.concatenate([np.full(self.jobs, highspy.kHighsInf), np.ones(self.jobs), self.devices])
        matrix = np.vstack(rows)
        objective = np.zeros(columns) if reward is None else reward
        if gain is not None:
            matrix = np.hstack([matrix, np.concatenate([-gain, np.zeros(self.jobs + self.types)])[:, None]])
            objective = np.append(objective, 1)
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = matrix.shape[1], matrix.shape[0]
        lp.col_cost_ = -objective
        lp.col_lower_ = np.zeros(lp.num_col_)
        lp.col_upper_ = np.full(lp.num_col_, highspy.kHighsInf)
        if gain is not None:
            lp.col_lower_ = np.append(np.zeros(columns), -highspy.kHighsInf)
        lp.row_lower_, lp.row_upper_ = lower, upper
        starts, indices, values = [0], [], []
        for column in matrix.T:
            nonzero = np.nonzero(column)[0]
            indices.extend(nonzero)
            values.extend(column[nonzero])
            starts.append(len(indices))
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = starts, indices, values
        solver = highspy.Highs()
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("primal_feasibility_tolerance", 1e-10)
        solver.setOptionValue("dual_feasibility_tolerance", 1e-10)
        solver.passModel(lp)
        solver.run()
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        return -solver.getInfo().objective_function_value


def check(number, line, name, worst):
    answer = line["answers"][name]
    cluster = Cluster(line, bool(answer["paired"]))
    shares = np.concatenate([answer["alone"], answer["paired"]])
    able, speeds = cluster.able, cluster.speed @ np.concatenate([answer["alone"], answer["paired"]])
    zero = np.zeros(cluster.jobs)
    assert cluster.broken(shares) < 1e-8, f"instance {number}, {name}: shares break the rules by {cluster.broken(shares)}"
    if name == "finish-time-fairness":
        ratio = ((cluster.age + cluster.steps / np.maximum(speeds, 1e-300)) / cluster.alone_s)[able].max()
        # A little less must be out of reach.
        left = ratio * (1 - 1e-6) * cluster.alone_s - cluster.age
        demand = np.where(able, cluster.steps / left, 0)
        possible = (left[able] > 0).all() and cluster.highest(demand, np.where(able, demand, 0))
        assert not possible or possible < 0, f"instance {number}: rho {ratio} could be lower"
        return
    if name in ("max-min", "makespan"):
        unit = cluster.weight * cluster.proportional / cluster.scale if name == "max-min" else cluster.steps
        mine = (speeds / unit)[able].min()
        best = cluster.highest(zero, np.where(able, unit, 0))
    else:
        price = np.tile(cluster.cost if name == "min-cost" else np.ones(cluster.types), cluster.speed.shape[1] // cluster.types)
        reward = cluster.speed.sum(axis=0) / price
        mine, best = reward @ shares, cluster.highest(zero, reward=reward)
    gap = abs(best - mine) / max(best, 1e-300)
    worst[name] = max(worst.get(name, 0), gap)
    assert gap < 1e-7, f"instance {number}, {name}: {mine}, HiGHS finds {best}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--count", type=int, default=2000)
    options = parser.parse_args()
    output = subprocess.run([options.program, str(options.count)], check=True, stdout=subprocess.PIPE, text=True).stdout
    worst = {}
    for number, text in enumerate(output.splitlines()):
        line = json.loads(text)
        for name in line["answers"]:
            # All of the small and paired ones; of the larger ones the objective that matters most.
            if name == "max-min" or number % 4 == 0:
                check(number, line, name, worst)
    print(f"{number + 1} clusters; largest relative distance to HiGHS: {worst}")


main()
