package edgespec;

import static org.junit.Assert.*;

import java.util.Arrays;
import java.util.List;
import org.junit.Test;

/** Tests where an answer ends and which text is shown, with tokens of one byte each. */
public class OutputTest {
    private final Recorder heard = new Recorder();

    private static Output output(int maxTokens) {
        Output output = new Output(maxTokens);
        output.useVocabulary(new Toy(100, 0), false);
        return output;
    }

    @Test
    public void charactersAreShownWhole() {
        Output output = output(100);
        output.cut(Toy.bytes("a\u00e9\u4f60\ud83d\ude00z"), heard);
        List<String> expected = Arrays.asList("a", "\u00e9", "\u4f60", "\ud83d\ude00", "z");
        assertEquals(expected, heard.pieces);
    }

    @Test
    public void bytesThatAreNoCharacter() {
        Output output = output(100);
        output.cut(new int[] {'a', 0xC3, 'b', 0xFF, 'c', 0xE4, 0xBD}, heard);
        assertEquals("a\ufffdb\ufffdc", output.text());
        output.flush(heard);
        assertEquals("a\ufffdb\ufffdc\ufffd", output.text());
        assertEquals(output.text(), heard.text.toString());
    }

    @Test
    public void anEndInsideADraft() {
        Output output = output(100);
        assertArrayEquals(new int[] {'a', Toy.END}, output.cut(new int[] {'a', Toy.END, 'b', 'c'}, heard));
        assertEquals("stop", output.finishReason());
        assertEquals("a", output.text());
        assertEquals(2, output.size());
        output.finish("error");
        assertEquals("the first reason stays", "stop", output.finishReason());
    }

    @Test
    public void theLastTokenInsideADraft() {
        Output output = output(3);
        assertEquals(3, output.cut(Toy.bytes("abcdef"), heard).length);
        assertEquals("length", output.finishReason());
        assertEquals("abc", output.text());
        assertEquals(3, heard.drafted);
    }

    @Test
    public void halfACharacterGoesOnInTheSameVocabularyOnly() {
        for (boolean same : new boolean[] {true, false}) {
            Output output = output(100);
            output.cut(new int[] {'a', 0xC3}, heard);
            output.useVocabulary(new Toy(100, 0), same);
            output.cut(new int[] {same ? 0xA9 : 'b'}, heard);
            assertEquals(same ? "a\u00e9" : "ab", output.text());
        }
    }
}
