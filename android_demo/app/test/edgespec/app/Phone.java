package edgespec.app;

import android.app.Activity;
import android.content.Intent;
import android.content.res.Resources;
import android.net.Uri;
import android.os.Bundle;
import android.os.Looper;
import android.text.SpannableString;
import android.view.View;
import android.widget.EditText;
import android.widget.TextView;
import java.io.File;
import java.util.ArrayList;
import java.util.List;
import java.util.function.BooleanSupplier;

/**
 * A phone made of fakes with the unmodified app on it, and its user. The calling thread is Android's
 * main thread. The fakes keep what the app sets; they neither lay out nor draw.
 */
final class Phone {
    private static final long TIMEOUT_MS = 30000;

    private final File resources;
    private final File folder;
    private boolean night;
    DemoApp app;
    ChatActivity activity;

    /**
     * Makes a phone.
     *
     * @param resources the folder app/res
     * @param folder the app's files on disk
     */
    Phone(File resources, File folder) {
        this.resources = resources;
        this.folder = folder;
        startApp();
    }

    // What happens to the app

    void startApp() {
        app = new DemoApp();
        app.fakeAttach(folder, new Resources(resources, night));
        app.onCreate();
    }

    /** Opens the app. */
    void launch() {
        activity = new ChatActivity();
        activity.fakeCreate(app, null);
    }

    /** Turns the phone: Android destroys the Activity and makes a new one from what it saved. */
    void rotate() {
        Bundle state = activity.fakeStop();
        app.fakeAttach(folder, new Resources(resources, night));
        activity = new ChatActivity();
        activity.fakeCreate(app, state);
    }

    /** Changes the theme, which has the same effect as turning the phone. */
    void setNight(boolean dark) {
        night = dark;
        rotate();
    }

    /** Ends the process of the app in the background, and opens the app again. */
    void endProcess() {
        activity.fakeStop();
        startApp();
        launch();
    }

    /** Runs the main thread until the condition holds. */
    void until(String what, BooleanSupplier condition) {
        long end = System.nanoTime() + TIMEOUT_MS * 1000000;
        while (!condition.getAsBoolean()) {
            Looper.fakeRunOne(20);
            if (System.nanoTime() > end) {
                throw new AssertionError("it did not come to this: " + what + "; the screen shows " + texts());
            }
        }
        while (Looper.fakeRunOne(0)) {
            // until the queue is empty
        }
    }

    // What the user does

    View find(int id) {
        View found = activity.fakeContent.fakeFind(id);
        if (found == null) {
            throw new AssertionError("there is no view of id " + id);
        }
        return found;
    }

    void touch(int id) {
        find(id).fakeClick();
    }

    void write(int id, String text) {
        ((EditText) find(id)).setText(text);
    }

    void menu(int id) {
        if (!activity.onOptionsItemSelected(activity.fakeMenu.items.get(id))) {
            throw new AssertionError("nothing happens at this item of the menu");
        }
    }

    /** Picks a file in the system's file picker, which the settings open. */
    void pick(File file) {
        menu(R.id.settings);
        touch(R.id.choose);
        if (!Intent.ACTION_OPEN_DOCUMENT.equals(activity.fakeAsked.fakeAction)) {
            throw new AssertionError("the app has not asked for a document");
        }
        Intent picked = new Intent("");
        picked.fakeData = new Uri(file);
        activity.fakeResult(Activity.RESULT_OK, picked);
    }

    // What the user sees

    String text(int id) { return ((TextView) find(id)).fakeText.toString(); }

    /** Returns all visible views, from top to bottom. */
    List<View> views() {
        List<View> views = new ArrayList<>();
        activity.fakeContent.fakeCollect(views);
        return views;
    }

    List<String> texts() {
        List<String> texts = new ArrayList<>();
        for (View view : views()) {
            if (view instanceof TextView text) {
                texts.add(text.fakeText.toString());
            }
        }
        return texts;
    }

    boolean shows(String part) { return texts().stream().anyMatch(text -> text.contains(part)); }

    /** Returns the text that is coloured as accepted drafts. */
    String shaded() {
        StringBuilder found = new StringBuilder();
        for (View view : views()) {
            if (view instanceof TextView text && text.fakeText instanceof SpannableString spans) {
                found.append(spans.fakeColoured(app.getColor(R.color.accepted)));
            }
        }
        return found.toString();
    }
}
