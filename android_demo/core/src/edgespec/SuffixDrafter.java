package edgespec;

import java.util.Arrays;

/**
 * Prompt lookup: drafts what followed the longest ending that was seen before, token for token the
 * first guesses of edgespec/drafters/suffix.py. It learns from every emitted token whether it would have drafted
 * that token, also in steps without a draft.
 */
final class SuffixDrafter {
    /** On no device does it pay to draft tokens that are accepted this seldom. */
    private static final double HOPELESS = 0.02;
    /** Shorter endings that are looked at. */
    private static final int SHORTER = 2;
    /** Classes of answers, by the share of their end that lookup predicted. */
    private static final double[] COPYING = {0.3, 0.6, 0.85};
    /** Classes of matches, by their length in tokens. */
    private static final int[] LENGTHS = {1, 2, 3, 4, 6, 8, 12, 20, 40};

    private final int minMatch;
    private final double pMin;
    private final Calibration calibration = new Calibration();
    private SuffixAutomaton automaton = new SuffixAutomaton();
    /** Share of the answer's last tokens that lookup would have drafted. */
    private double predicted;

    /**
     * @param minMatch shortest ending, in tokens, to draft from
     * @param pMin the draft ends where its acceptance probability falls below this
     */
    SuffixDrafter(int minMatch, double pMin) {
        this.minMatch = minMatch;
        this.pMin = pMin;
    }

    /**
     * Reads a conversation, or only what is new if it continues what was read before.
     *
     * @param earlier tokens of turns that no longer fit the prompt but may still be copied from
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
        predicted = 0.3;
    }

    /** Drafts the first guess after the text, then the one after it, …, at most limit tokens. */
    Draft propose(int limit) {
        int[] tokens = new int[limit];
        double[] probs = new double[limit];
        int state = automaton.suffix();
        int[] length = {automaton.length(state)};
        double prob = 1;
        int n = 0;
        while (n < limit) {
            SuffixAutomaton.Follower guess = first(state, length[0]);
            if (guess == null) {
                break;
            }
            prob *= calibration.estimate(kind(guess), assumed(guess));
            if (prob < pMin || prob < HOPELESS) {
                break;
            }
            tokens[n] = guess.token;
            probs[n++] = prob;
            state = automaton.step(state, length, guess.token);
        }
        return new Draft(Arrays.copyOf(tokens, n), Arrays.copyOf(probs, n), 0);
    }

    /** Reads what was emitted, and compares it with what lookup would have drafted. */
    void accept(int[] tokens) {
        for (int token : tokens) {
            int state = automaton.suffix();
            SuffixAutomaton.Follower guess = first(state, automaton.length(state));
            boolean hit = guess != null && token == guess.token;
            if (guess != null) {
                calibration.observe(kind(guess), hit);
            }
            predicted += ((hit ? 1 : 0) - predicted) / 20;
            automaton.append(token);
        }
    }

    /** Returns what followed the longest ending that anything followed; null if there is none. */
    private SuffixAutomaton.Follower first(int state, int length) {
        for (int i = 0; i <= SHORTER && length >= minMatch; i++) {
            SuffixAutomaton.Follower found = automaton.latest(state, length);
            if (found != null) {
                return found;
            }
            state = automaton.shorter(state);
            length = automaton.length(state);
        }
        return null;
    }

    /**
     * Returns the chance that a token is right where nothing is known yet. The function assumed in
     * edgespec/drafters/matches.py says where its numbers come from.
     */
    private double assumed(SuffixAutomaton.Follower one) {
        double share = (double) one.hits / one.times;
        double evidence = one.length + one.times;
        double chance = share * share * (evidence - 1) / (evidence + 0.5);
        double copying = Math.pow(Math.max(predicted, 0.02) / (1.02 - predicted) / 1.5, 0.3);
        double odds = chance / (1 - chance) * copying;
        return odds / (1 + odds);
    }

    /** Returns the class of the evidence: the match's length, how it was followed, how much is copied. */
    private int kind(SuffixAutomaton.Follower one) {
        int lengths = 0;
        while (lengths < LENGTHS.length && LENGTHS[lengths] < one.length) {
            lengths++;
        }
        int copying = 0;
        while (copying < COPYING.length && COPYING[copying] <= predicted) {
            copying++;
        }
        int followed = one.hits < one.times ? 4 * one.hits / one.times : one.times == 1 ? 3 : 4;
        return (lengths * 5 + followed) * 4 + copying;
    }
}
