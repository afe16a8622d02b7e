package edgespec;

import java.util.Arrays;
import java.util.List;

/**
 * Prompt lookup: drafts what followed the longest ending that was seen before, as
 * edgespec/drafters/suffix.py does, token for token. Every emitted token tells whether it would
 * have been right, drafted or not.
 */
final class SuffixDrafter {
    /** No device drafts tokens that survive this seldom. */
    private static final double HOPELESS = 0.02;
    private static final double[] COPYING = {0.3, 0.6, 0.85};
    private static final int[] LENGTHS = {1, 2, 3, 4, 6, 8, 12, 20, 40};

    private final int minMatch;
    private final double pMin;
    private final Calibration calibration = new Calibration();
    private SuffixAutomaton automaton = new SuffixAutomaton();
    /** Share of the answer's last tokens that lookup would have drafted. */
    private double foretold;

    /**
     * @param minMatch shortest ending, in tokens, to draft from
     * @param pMin the draft ends where its survival falls below this
     */
    SuffixDrafter(int minMatch, double pMin) {
        this.minMatch = minMatch;
        this.pMin = pMin;
    }

    /**
     * Reads a conversation: only what is new if it goes on from what was read before.
     *
     * @param earlier tokens of turns that no longer fit the prompt, which still may be copied
     */
    void begin(int[] prompt, int[] earlier) {
        int[] text = prompt;
        if (earlier.length > 0) {
            text = Arrays.copyOf(earlier, earlier.length + 1 + prompt.length);
            text[earlier.length] = SuffixAutomaton.SEPARATOR;
            System.arraycopy(prompt, 0, text, earlier.length + 1, prompt.length);
        }
        if (automaton.tokens.commonPrefix(text) < automaton.tokens.size()) {
            automaton = new SuffixAutomaton();
        }
        for (int i = automaton.tokens.size(); i < text.length; i++) {
            automaton.append(text[i]);
        }
        foretold = 0.3;
    }

    /** What followed last time, up to so many tokens, and how likely each of them is to stay. */
    Draft propose(int limit) {
        int state = automaton.suffix();
        int length = automaton.length(state);
        if (length < minMatch) {
            return Draft.NONE;
        }
        List<SuffixAutomaton.Follower> followers = automaton.follow(state, limit);
        int[] tokens = new int[followers.size()];
        double[] survivals = new double[followers.size()];
        double survival = 1;
        int n = 0;
        for (SuffixAutomaton.Follower one : followers) {
            survival *= calibration.estimate(kind(length + n, one), assumed(length + n, one));
            if (survival < pMin || survival < HOPELESS) {
                break;
            }
            tokens[n] = one.token;
            survivals[n++] = survival;
        }
        return new Draft(Arrays.copyOf(tokens, n), Arrays.copyOf(survivals, n));
    }

    /** Reads what was emitted, and compares it with what was to be expected. */
    void accept(int[] tokens) {
        for (int token : tokens) {
            boolean hit = false;
            int state = automaton.suffix();
            int length = automaton.length(state);
            if (length >= minMatch) {
                for (SuffixAutomaton.Follower expected : automaton.follow(state, 1)) {
                    hit = token == expected.token;
                    calibration.observe(kind(length, expected), hit);
                }
            }
            foretold += ((hit ? 1 : 0) - foretold) / 20;
            automaton.append(token);
        }
    }

    /** The chance of a token where nothing is known yet; the source of its figures is in Python. */
    private double assumed(int length, SuffixAutomaton.Follower one) {
        double share = (double) one.hits / one.times;
        double evidence = length + one.times;
        double chance = share * share * (evidence - 1) / (evidence + 0.5);
        double copying = Math.pow(Math.max(foretold, 0.02) / (1.02 - foretold) / 1.5, 0.3);
        double odds = chance / (1 - chance) * copying;
        return odds / (1 + odds);
    }

    /** Evidence in classes: the match's length, how it was followed, how much is copied. */
    private int kind(int length, SuffixAutomaton.Follower one) {
        int lengths = 0;
        while (lengths < LENGTHS.length && LENGTHS[lengths] < length) {
            lengths++;
        }
        int copying = 0;
        while (copying < COPYING.length && COPYING[copying] <= foretold) {
            copying++;
        }
        int followed = one.hits < one.times ? 4 * one.hits / one.times : one.times == 1 ? 3 : 4;
        return (lengths * 5 + followed) * 4 + copying;
    }
}
