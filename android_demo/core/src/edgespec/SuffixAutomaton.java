package edgespec;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * A suffix automaton over all tokens so far: it knows every substring of them (Blumer et al. 1985;
 * for drafting arXiv 2411.10666), as the one in edgespec/drafters/automaton.py does. The suffix link of
 * the newest state is the longest ending that was seen before. The newest position is counted when
 * the next token comes, so that only earlier occurrences are found.
 */
final class SuffixAutomaton {
    /** Stands between texts that do not follow each other; it is never drafted. */
    static final int SEPARATOR = -1;
    /** Number of endings that are counted per token; longer chains occur only in periodic text. */
    private static final int COUNTED = 64;

    final IntList tokens = new IntList();
    private final IntList length = new IntList();
    private final IntList link = new IntList();
    private final List<HashMap<Integer, Integer>> next = new ArrayList<HashMap<Integer, Integer>>();
    private final IntList count = new IntList();
    private final IntList end = new IntList();
    private int last = 0;

    /** A token that followed an ending of `length` tokens, `hits` times out of the `times` that anything did. */
    static final class Follower {
        final int token;
        final int length;
        final int hits;
        final int times;

        Follower(int token, int length, int hits, int times) {
            this.token = token;
            this.length = length;
            this.hits = hits;
            this.times = times;
        }
    }

    SuffixAutomaton() {
        newState(0, new HashMap<Integer, Integer>());
    }

    /** Adds one token, in amortised constant time. */
    void append(int token) {
        int state = newState(length.get(last) + 1, new HashMap<Integer, Integer>(2));
        int walk = last;
        while (walk != -1 && !next.get(walk).containsKey(token)) {
            next.get(walk).put(token, state);
            walk = link.get(walk);
        }
        link.set(state, walk == -1 ? 0 : split(walk, token));
        last = state;
        tokens.add(token);
        countNewest();
    }

    /** Returns the state of the longest ending that occurred before; 0 if none did. */
    int suffix() { return last == 0 ? 0 : link.get(last); }

    /** Returns the number of tokens of a state's longest substring. */
    int length(int state) { return length.get(state); }

    /** Returns the longest shorter ending that occurred in more places. */
    int shorter(int state) { return Math.max(link.get(state), 0); }

    /** Returns the token that followed a state, reached by `length` tokens, the last time; null if none did. */
    Follower latest(int state, int length) {
        int newest = tokens.size() - 1;
        int times = Math.max(1, count.get(state) - (end.get(state) == newest ? 1 : 0));
        Map.Entry<Integer, Integer> found = null;
        for (Map.Entry<Integer, Integer> one : next.get(state).entrySet()) {
            if (one.getKey() != SEPARATOR
                    && (found == null || end.get(one.getValue()) > end.get(found.getValue()))) {
                found = one;
            }
        }
        if (found == null) {
            return null;
        }
        int hits = Math.max(1, Math.min(count.get(found.getValue()), times));
        return new Follower(found.getKey(), length, hits, times);
    }

    /**
     * Returns the state of the longest ending of a match and one more token, and writes its length.
     *
     * @param matched the length of the match; afterwards that of the new one, 0 if there is none
     */
    int step(int state, int[] matched, int token) {
        while (state > 0 && !next.get(state).containsKey(token)) {
            state = link.get(state);
            matched[0] = length.get(state);
        }
        Integer after = next.get(state).get(token);
        matched[0] = after == null ? 0 : matched[0] + 1;
        return after == null ? 0 : after;
    }

    private void countNewest() {
        int newest = tokens.size() - 1;
        int state = last;
        for (int i = 0; i < COUNTED && state > 0; i++) {
            count.set(state, count.get(state) + 1);
            end.set(state, newest);
            state = link.get(state);
        }
    }

    /** Returns the state of exactly (text of walk) + token, split off a longer one if necessary. */
    private int split(int walk, int token) {
        int target = next.get(walk).get(token);
        if (length.get(walk) + 1 == length.get(target)) {
            return target;
        }
        int clone = newState(length.get(walk) + 1, new HashMap<Integer, Integer>(next.get(target)));
        link.set(clone, link.get(target));
        link.set(target, clone);
        count.set(clone, count.get(target));
        end.set(clone, end.get(target));
        while (walk != -1 && Integer.valueOf(target).equals(next.get(walk).get(token))) {
            next.get(walk).put(token, clone);
            walk = link.get(walk);
        }
        return clone;
    }

    private int newState(int stateLength, HashMap<Integer, Integer> transitions) {
        length.add(stateLength);
        link.add(-1);
        next.add(transitions);
        count.add(0);
        end.add(-1);
        return length.size() - 1;
    }
}
